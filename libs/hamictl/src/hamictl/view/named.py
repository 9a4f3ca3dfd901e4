"""Format rows of named questions; a column's name implies its unit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hamictl.output.records import Records, Row, TableColumn
from hamictl.output.terminal import shown_time
from hamictl.questions import QuestionAnswer
from hamictl.view.waterfall import length

GIB, MIB = 1024**3, 1024**2
_UNKNOWN, _NONE = "?", "-"
_WIDE = frozenset(
    {
        *("pod_uid", "allocation_id", "trace_id", "owner_kind", "owner_name", "decision", "change"),
        *("finding", "attempt_count", "candidate_count", "role", "message", "source", "vendor"),
        "node_group",
    }
)
"""Columns that are shown only with `-o wide`."""
_THINGS = {"nodes": ("node", "node"), "cards": ("device", "device_uuid")}
"""Questions whose rows are objects with names -> the kind and the column of the name."""
ANY = "any"
_SHARES = ("core_ratio", "asked_core_ratio")
"""Columns with shares of cores; 0 means no share, so that all idle cores may be used."""
_HEADERS = {
    "sick_s": "UNHEALTHY-FOR",
    "sick_card_count": "UNHEALTHY-CARDS",
    "heard_at": "LAST-REPORT",
    "ahead_count": "AHEAD",
    "fitting_count": "FITTING",
    "idle_ratio": "IDLE-SHARE",
    "slice_s": "SLICE-TIME",
    "node_group": "GROUP",
    "lasted_s": "DURATION",
    "state": "STATUS",
    "sick_at": "UNHEALTHY",
    "well_at": "HEALTHY",
}
"""Headers of columns that differ from the usual form."""
_NAMES = ("pod_name", "node", "device_uuid", "namespace", "resource", "type", "reason_code")


def records_of(answer: QuestionAnswer, *, columns: Sequence[str] = ()) -> Records:
    """Return records of the answer's columns, or only of `columns` in this order."""
    names = list(columns) or (list(answer.rows[0]) if answer.rows else [])
    return Records(
        kind="".join(part.capitalize() for part in answer.question.split("-")),
        plural="rows",
        columns=[_column(name, answer.unknown) for name in names],
        rows=answer.rows,
        name=partial(_name, answer.question),
        as_of=answer.as_of,
        began_at=answer.record_began_at,
        fields=answer.columns,
    )


def _name(question: str, row: Row) -> str:
    if question in _THINGS:
        kind, key = _THINGS[question]
        return f"{kind}/{row.get(key)}"
    if row.get("pod_name") is not None:
        return f"pod/{row.get('namespace')}/{row['pod_name']}"
    known = next((str(row[key]) for key in _NAMES if row.get(key) is not None), "?")
    return f"{question}/{known}"


def _column(name: str, unknown: frozenset[str]) -> TableColumn:
    absent = _UNKNOWN if name in unknown else _NONE
    return TableColumn(header_of(name), partial(_cell, name, absent), name, name in _WIDE)


def header_of(name: str) -> str:
    """Return the header of a column: `memory_bytes` is MEMORY, `card_count` is CARDS."""
    if name in _HEADERS:
        return _HEADERS[name]
    if name.endswith("_count"):
        return name.removesuffix("_count").upper().replace("_", "-") + "S"
    for suffix in ("_bytes", "_ratio", "_at", "_name"):
        if name.endswith(suffix):
            return name.removesuffix(suffix).upper().replace("_", "-")
    return name.removesuffix("_s").upper().replace("_", "-")


def _cell(name: str, absent: str, row: Row) -> str:
    if "held_core_ratio" in row and row.get(name) == 0:
        # Of a card: its own cores, and the sum of its slices' shares.
        if name in _SHARES:
            return _ratio(0)
        if name == "held_core_ratio" and row.get("held_slot_count"):
            return ANY
    return cell(name, row.get(name), absent)


def cell(name: str, value: object, absent: str = _NONE) -> str:
    """Format a value with the unit that the column's suffix implies."""
    if value is None:
        return absent
    if name in _SHARES and value == 0:
        return ANY
    for suffix, show in _SHOWN.items():
        if name.endswith(suffix):
            return show(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or _NONE
    if isinstance(value, list):
        return ", ".join(map(str, value)) or _NONE
    return str(value)


def amount(value: object) -> str:
    """Format bytes in GiB, or small amounts in MiB."""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value / GIB:.4g} GiB" if value >= GIB or value == 0 else f"{value / MIB:.4g} MiB"


def _ratio(value: object) -> str:
    return f"{value * 100:.3g} %" if isinstance(value, int | float) else str(value)


def _seconds(value: object) -> str:
    return length(round(value * 1_000_000)) if isinstance(value, int | float) else str(value)


_SHOWN: dict[str, Callable[[object], str]] = {
    "_bytes": amount,
    "_ratio": _ratio,
    "_at": shown_time,
    "_s": _seconds,
}
