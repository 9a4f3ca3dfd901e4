"""The lists of `hamictl get`: nodes, cards, pods, allocations and quotas. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from hamictl.output.presentation import shown_time
from hamictl.output.records import Records, Row, TableColumn
from hamictl.questions import Answered
from hamictl.view import tables
from hamictl.view.named import records_of
from hamictl.view.tables import memory, of, plain_column

QUOTA_AMOUNTS = {"limit_amount": "LIMIT", "used_amount": "USED", "left_amount": "LEFT"}
"""Columns whose unit is the resource's own -> their headers."""


def devices(rows: Sequence[Row], as_of: str | None) -> Records:
    """Cards, with what is granted of each."""
    return Records(
        kind="Device",
        plural="cards",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"device/{row['uuid']}",
        columns=(
            plain_column("NODE", "node"),
            plain_column("CARD", "index"),
            TableColumn("MODEL", tables.model, "type"),
            TableColumn(
                "MEMORY",
                lambda r: tables.amount(memory(r["used_memory_mib"]), memory(r["memory_mib"])),
                "used_memory_mib",
            ),
            TableColumn("CORES", tables.card_cores, "used_core_percent"),
            TableColumn("SLOTS", lambda r: f"{r['used_slots']} of {r['slots']}", "used_slots"),
            TableColumn("HEALTH", tables.health),
            plain_column("UUID", "uuid"),
            plain_column("NUMA", "numa", wide=True),
        ),
    )


def allocations(rows: Sequence[Row], as_of: str | None) -> Records:
    """Who holds what."""
    return Records(
        kind="Allocation",
        plural="allocations",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"pod/{row['namespace']}/{row['pod_name']}",
        columns=(
            TableColumn("POD", _pod),
            plain_column("NODE", "node"),
            TableColumn("STATE", _state, "state"),
            TableColumn("SLICES", _slices),
            TableColumn(
                "LIMITS", lambda r: "-" if r.get("limit_state") is None else of(r["limit_state"])
            ),
            TableColumn("SINCE", lambda r: shown_time(r["reserved_at"]), "reserved_at"),
            plain_column("UID", "pod_uid", wide=True),
            plain_column("ATTEMPT", "attempt", wide=True),
        ),
    )


def nodes(
    rows: Sequence[Row], as_of: str | None, cards: Mapping[str, Sequence[Row]] | None = None
) -> Records:
    """Kubernetes nodes with their GPU counts; `cards`: those of each, for the wide form."""

    def each_card(row: Row) -> str:
        if cards is None:
            return of(None)
        return ", ".join(map(_card, cards.get(str(row["name"]), ()))) or "-"

    return Records(
        kind="Node",
        plural="nodes",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"node/{row['name']}",
        columns=(
            plain_column("NODE", "name"),
            # Where no node has a rack or zone the column would be empty.
            *([_grouped()] if any(row.get("node_group") for row in rows) else []),
            plain_column("READY", "ready"),
            TableColumn("HELD", _cards_held, "held_card_count"),
            TableColumn(
                "MEMORY",
                lambda r: f"{memory(r['used_memory_mib'])} of {memory(r['memory_mib'])}",
                "used_memory_mib",
            ),
            TableColumn("HEALTH", _node_health, "sick_card_count"),
            plain_column("SLOTS", "allocatable"),
            plain_column("BINDING", "binding"),
            TableColumn("GIB GRANTED/SIZE BY CARD", each_card, wide=True),
            plain_column("MOUNTS", "mounts", wide=True),
            plain_column("WHY SO BOUND", "binding_reason", wide=True),
        ),
    )


def pods(rows: Sequence[Row], as_of: str | None) -> Records:
    """Pods, with the reason beside each one that waits."""
    return Records(
        kind="Pod",
        plural="pods",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"pod/{row['name']}",
        columns=(
            plain_column("POD", "name"),
            plain_column("PHASE", "phase"),
            TableColumn("NODE", lambda r: of(r["node"]) or "-", "node"),
            plain_column("SLICES / WHY IT WAITS", "detail"),
            plain_column("UID", "pod_uid", wide=True),
        ),
    )


def _grouped() -> TableColumn:
    return TableColumn("GROUP", lambda row: row.get("node_group") or "-", "node_group")


def _card(card: Row) -> str:
    """`0 31/80`; a sick card is `1 ✖ 0/80`."""
    sick = "" if card["healthy"] else "✖ "
    granted, size = (f"{card[key] / 1024:.3g}" for key in ("used_memory_mib", "memory_mib"))
    return f"{card['index']} {sick}{granted}/{size}"


def _cards_held(row: Row) -> str:
    return f"{of(row['held_card_count'])} of {of(row['card_count'])}"


def _node_health(row: Row) -> str:
    if not row["card_count"]:
        return of(None if row["card_count"] is None else "no card")
    sick = row["sick_card_count"]
    return f"{sick} sick" if sick else "healthy"


def _pod(row: Row) -> str:
    return f"{row['namespace']}/{row['pod_name']}"


def _state(row: Row) -> str:
    return of(row["state"]) + (f": {row['reason']}" if row.get("reason") else "")


def _slices(row: Row) -> str:
    return ", ".join(tables.slice_lines(row))


def quota_records(answer: Answered) -> Records:
    """The answer to the question `quota`."""
    found = records_of(answer)
    columns = [
        TableColumn(QUOTA_AMOUNTS[column.key], partial(quota_amount, column.key), column.key)
        if column.key in QUOTA_AMOUNTS
        else column
        for column in found.columns
    ]
    return replace(found, plural="quotas", columns=columns)


def quota_amount(key: str, row: Row) -> str:
    """An amount with the unit that follows from the name of the resource.

    >>> quota_amount("used_amount", {"resource": "nvidia.com/gpumem", "used_amount": 20480})
    '20 GiB'
    >>> quota_amount("used_amount", {"resource": "nvidia.com/gpucores", "used_amount": 130})
    '130 %'
    """
    amount = row.get(key)
    if amount is None:
        return "no limit"
    name = str(row["resource"]).partition("/")[2].lower()
    if "mem" in name:
        return memory(int(amount))
    return f"{amount} %" if "core" in name else str(amount)


def vain_setting(row: Row) -> str:
    """`ResourceQuota team-a/q: nvidia.com/gpumem: 4000 limits nothing: ...`."""
    if row["kind"] == "ResourceQuota":
        return f"ResourceQuota {row['namespace']}/{row['name']}: {row['problem']}"
    return f"Node {row['name']}, annotation {row['setting']}: {row['problem']}"
