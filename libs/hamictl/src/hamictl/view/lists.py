"""Tables of nodes, cards, pods, allocations and quotas from rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rich import box
from rich.table import Table
from rich.text import Text

from hamictl.output.records import UNKNOWN, Records, Row, TableColumn, plain_column, text_of
from hamictl.output.terminal import age, printable
from hamictl.questions import QuestionAnswer
from hamictl.view.named import records_of

WHOLE_PERCENT = 100


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a plain table, which also reads well in a pipe.

    Cells come from the cluster, where any user may write: they are never parsed as markup, and no
    control character reaches the terminal.
    """
    made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def records_table(title: str, records: Records) -> Table:
    """Return a plain table of the columns that are not only for `-o wide`."""
    columns = [column for column in records.columns if not column.wide]
    rows = ([column.show(row) for column in columns] for row in records.rows)
    return table(title, [column.header for column in columns], rows)


def age_column(key: str) -> TableColumn:
    """Return the column AGE, counted from a time."""
    return TableColumn("AGE", lambda row: age(row.get(key)), key)


def memory(mib: int | None) -> str:
    """Format MiB in a suitable unit."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.4g} GiB" if mib >= 1024 else f"{mib} MiB"


def model(row: Row) -> str:
    """Return the product's name, with its vendor if the name lacks it."""
    kind, vendor = text_of(row["type"]), text_of(row.get("vendor") or "")
    if vendor == "NVIDIA":
        return kind.removeprefix("NVIDIA ")
    return kind if not vendor or vendor.lower() in kind.lower() else f"{vendor} {kind}"


def amount(used: str, capacity: str) -> str:
    """Format granted and total amount; a dash if the vendor does not count this amount."""
    return "-" if capacity == memory(0) else f"{used} of {capacity}"


def _card_memory(row: Row) -> str:
    """Format granted memory, followed by amounts that are reserved for waiting pods."""
    # An older scheduler without rooms does not send it.
    room_mib = row.get("room_memory_mib") or 0
    held = amount(memory(row["used_memory_mib"] - room_mib), memory(row["memory_mib"]))
    return f"{held}, room for {memory(room_mib)}" if room_mib else held


CORE_UNITS = {"AMD": "CUs", "AWSNeuron": "NeuronCores", "Mthreads": "16ths"}
"""Units of cores for vendors that don't count percent."""


def card_cores(row: Row) -> str:
    """Format granted cores in the vendor's unit."""
    used, capacity = row["used_core_percent"], row["core_percent"]
    vendor = text_of(row.get("vendor") or "")
    if vendor == "AWSNeuron":
        # A bitmask of the card's cores in use.
        return f"{int(used).bit_count()} of {int(capacity).bit_count()} {CORE_UNITS[vendor]}"
    if not capacity:
        return "-"
    if vendor.startswith("Ascend") and capacity != WHOLE_PERCENT:
        return f"{used} % used, {capacity} AI cores"
    if not used and row.get("used_slots"):
        return cores(used)
    return f"{used} of {capacity} {CORE_UNITS.get(vendor, '%')}"


def health(row: Row) -> str:
    """Return the card's state, or the reason of a bad one."""
    if not row.get("present", True):
        return "gone"
    if row.get("cordoned"):
        return "cordoned"
    return "healthy" if row["healthy"] else f"unhealthy: {row.get('health_reason') or UNKNOWN}"


def slice_lines(row: Row) -> list[str]:
    """Return a line for each slice of an allocation.

    A slice of a ResourceClaim is shown with claim, request and the other pods that hold it, even if
    it is counted for another pod.
    """
    claims = row.get("claims") or []
    named = {(each["container"], each["device_uuid"]) for each in claims}
    own = [s for s in row["devices"] if (s["container"], s["device_uuid"]) not in named]
    return [*map(_slice, own), *(f"{_slice(each)}, {_claim_text(each)}" for each in claims)]


def _slice(share: Row) -> str:
    return (
        f"{share['container']}: {memory(share['memory_mib'])}, {cores(share['core_percent'])}"
        f" of {share['device_uuid']}"
    )


def _claim_text(share: Row) -> str:
    others = share["together_with"]
    together = f", together with {', '.join(others)}" if others else ""
    return f"by claim {share['claim']} request {share['request']}{together}"


def claims_of(change: Row) -> str:
    """Return the claims of a grant, one per line, from the first entry of its history.

    Each has claim, request and share. Empty: granted by limits, or a later entry of the history.
    """
    claims = (change.get("detail") or {}).get("claims") or []
    return "\n".join(
        f"{each['container']}: {each['claim']} request {each['request']}"
        + (f" share {each['share_id']}" if each.get("share_id") else "")
        for each in claims
    )


def cores(percent: int) -> str:
    """Format a share of cores, or its absence."""
    return f"{percent} % cores" if percent else "any cores"


QUOTA_AMOUNTS = {"limit_amount": "LIMIT", "used_amount": "USED", "left_amount": "LEFT"}
"""Columns in the resource's own unit -> their headers."""


def devices(rows: Sequence[Row], as_of: str | None) -> Records:
    """Return records of cards with their granted amounts."""
    return Records(
        kind="Device",
        plural="cards",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"device/{row['uuid']}",
        columns=(
            plain_column("NODE", "node"),
            plain_column("CARD", "index"),
            TableColumn("MODEL", model, "type"),
            TableColumn("MEMORY", _card_memory, "used_memory_mib"),
            TableColumn("CORES", card_cores, "used_core_percent"),
            TableColumn("SLOTS", lambda r: f"{r['used_slots']} of {r['slots']}", "used_slots"),
            TableColumn("STATUS", health),
            plain_column("UUID", "uuid"),
            plain_column("NUMA", "numa", wide=True),
        ),
    )


def allocations(rows: Sequence[Row], as_of: str | None) -> Records:
    """Return records of allocations."""
    return Records(
        kind="Allocation",
        plural="allocations",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"pod/{row['namespace']}/{row['pod_name']}",
        columns=(
            plain_column("NAMESPACE", "namespace"),
            plain_column("NAME", "pod_name"),
            TableColumn("STATUS", _state, "state"),
            age_column("reserved_at"),
            plain_column("NODE", "node"),
            TableColumn("SLICES", lambda row: ", ".join(slice_lines(row))),
            plain_column("LIMITS", "limit_state", absent="-"),
            plain_column("UID", "pod_uid", wide=True),
            plain_column("ATTEMPT", "attempt", wide=True),
        ),
    )


def nodes(
    rows: Sequence[Row], as_of: str | None, cards: Mapping[str, Sequence[Row]] | None = None
) -> Records:
    """Return records of nodes with counts of cards; `cards`: those of each, for `-o wide`."""

    def each_card(row: Row) -> str:
        if cards is None:
            return UNKNOWN
        return ", ".join(map(_card, cards.get(str(row["name"]), ()))) or "-"

    return Records(
        kind="Node",
        plural="nodes",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"node/{row['name']}",
        columns=(
            plain_column("NAME", "name"),
            TableColumn("STATUS", _ready, "ready"),
            age_column("created_at"),
            # The column would be empty if no node has a rack or zone.
            *([_GROUP] if any(row.get("node_group") for row in rows) else []),
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
            plain_column("BINDING REASON", "binding_reason", wide=True),
        ),
    )


def pods(rows: Sequence[Row], as_of: str | None) -> Records:
    """Return records of pods, with the reason why each pending pod waits."""
    return Records(
        kind="Pod",
        plural="pods",
        rows=rows,
        as_of=as_of,
        name=lambda row: f"pod/{row['name']}",
        columns=(
            plain_column("NAMESPACE", "namespace"),
            plain_column("NAME", "pod_name"),
            plain_column("STATUS", "phase"),
            age_column("created_at"),
            TableColumn("NODE", lambda row: row["node"] or "-", "node"),
            plain_column("SLICES / REASON", "detail"),
            plain_column("UID", "pod_uid", wide=True),
        ),
    )


_GROUP = plain_column("GROUP", "node_group", absent="-")


def _ready(row: Row) -> str:
    """Return the status as kubectl shows it."""
    ready = {"True": "Ready", "False": "NotReady"}.get(str(row["ready"]), "Unknown")
    return f"{ready},SchedulingDisabled" if row.get("unschedulable") else ready


def _card(card: Row) -> str:
    """Format a card as `0 31/80`, or `1 ✖ 0/80` if unhealthy."""
    sick = "" if card["healthy"] else "✖ "
    granted, size = (f"{card[key] / 1024:.3g}" for key in ("used_memory_mib", "memory_mib"))
    return f"{card['index']} {sick}{granted}/{size}"


def _cards_held(row: Row) -> str:
    return f"{text_of(row['held_card_count'])} of {text_of(row['card_count'])}"


def _node_health(row: Row) -> str:
    if not row["card_count"]:
        return text_of(None if row["card_count"] is None else "no card")
    sick = row["sick_card_count"]
    return f"{sick} unhealthy" if sick else "healthy"


def _state(row: Row) -> str:
    return text_of(row["state"]) + (f": {row['reason']}" if row.get("reason") else "")


def quota_records(answer: QuestionAnswer) -> Records:
    """Return records of the answer to the question `quota`."""
    found = records_of(answer)
    columns = [
        TableColumn(QUOTA_AMOUNTS[column.key], partial(quota_amount, column.key), column.key)
        if column.key in QUOTA_AMOUNTS
        else column
        for column in found.columns
    ]
    return replace(found, plural="quotas", columns=columns)


def quota_amount(key: str, row: Row) -> str:
    """Format an amount with the unit that the resource's name implies.

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
    """Format `ResourceQuota team-a/q: nvidia.com/gpumem: 4000 limits nothing: ...`."""
    if row["kind"] == "ResourceQuota":
        return f"ResourceQuota {row['namespace']}/{row['name']}: {row['problem']}"
    return f"Node {row['name']}, annotation {row['setting']}: {row['problem']}"
