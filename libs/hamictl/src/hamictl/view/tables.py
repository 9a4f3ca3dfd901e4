"""Tables of pods, nodes, cards and allocations. Pure: rows in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hamictl.output.presentation import printable
from hamictl.output.records import Row, TableColumn

UNKNOWN = "?"
WHOLE_PERCENT = 100


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table that also reads well when it is not on a terminal.

    Cells come from the cluster, where anybody may have written: nothing in them is markup, and no
    control character reaches the terminal.
    """
    made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def of(value: object) -> str:
    """A cell; what is not known is shown as such, never as 0."""
    return UNKNOWN if value is None else str(value)


def plain_column(header: str, key: str, *, wide: bool = False) -> TableColumn:
    """A column that shows a field as it is; `?` where it is not known."""
    return TableColumn(header, lambda row: of(row.get(key)), key, wide)


def memory(mib: int | None) -> str:
    """MiB in the unit that people use."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.4g} GiB" if mib >= 1024 else f"{mib} MiB"


def devices_table(rows: Iterable[Row], *, short: bool = False) -> Table:
    """Cards with what is granted of each; `short` uuids suffice to distinguish cards."""
    return table(
        "Cards",
        ("NODE", "#", "MODEL", "UUID", "MEMORY", "CORES", "SLOTS", "HEALTH"),
        (
            (
                of(row["node"]),
                of(row["index"]),
                model(row),
                of(row["uuid"])[:12] if short else of(row["uuid"]),
                amount(memory(row["used_memory_mib"]), memory(row["memory_mib"])),
                card_cores(row),
                f"{row['used_slots']} of {row['slots']}",
                health(row),
            )
            for row in rows
        ),
    )


def model(row: Row) -> str:
    """The product, with its vendor where the name does not contain it."""
    kind, vendor = of(row["type"]), of(row.get("vendor") or "")
    if vendor == "NVIDIA":
        return kind.removeprefix("NVIDIA ")
    return kind if not vendor or vendor.lower() in kind.lower() else f"{vendor} {kind}"


def amount(used: str, capacity: str) -> str:
    """How much of it is granted; a dash where the vendor's cards are not counted so."""
    return "-" if capacity == memory(0) else f"{used} of {capacity}"


CORE_UNITS = {"AMD": "CUs", "AWSNeuron": "NeuronCores", "Mthreads": "16ths"}
"""Amounts of vendors that count cores, not percent; an Ascend chip that registers AI cores too."""


def card_cores(row: Row) -> str:
    """Granted cores in the unit that the vendor counts in."""
    used, capacity = row["used_core_percent"], row["core_percent"]
    vendor = of(row.get("vendor") or "")
    if vendor == "AWSNeuron":
        # A bitmask: which of the card's cores are taken.
        return f"{int(used).bit_count()} of {int(capacity).bit_count()} {CORE_UNITS[vendor]}"
    if not capacity:
        return "-"
    if vendor.startswith("Ascend") and capacity != WHOLE_PERCENT:
        return f"{used} % used, {capacity} AI cores"
    if not used and row.get("used_slots"):
        return cores(used)
    return f"{used} of {capacity} {CORE_UNITS.get(vendor, '%')}"


def health(row: Row) -> str:
    """One state, or the reason."""
    if not row.get("present", True):
        return "gone"
    if row.get("cordoned"):
        return "cordoned"
    return "healthy" if row["healthy"] else f"sick: {row.get('health_reason') or UNKNOWN}"


def slices(row: Row) -> str:
    """The slices of an allocation, one per line."""
    return "\n".join(slice_lines(row))


def slice_lines(row: Row) -> list[str]:
    """Each slice of an allocation; those by ResourceClaims with claim, request and who else holds
    them, also where they are counted for another pod."""
    claims = row.get("claims") or []
    named = {(each["container"], each["device_uuid"]) for each in claims}
    own = [s for s in row["devices"] if (s["container"], s["device_uuid"]) not in named]
    return [*map(_slice, own), *(f"{_slice(each)}, {_claimed(each)}" for each in claims)]


def _slice(share: Row) -> str:
    return (
        f"{share['container']}: {memory(share['memory_mib'])}, {cores(share['core_percent'])}"
        f" of {share['device_uuid']}"
    )


def _claimed(share: Row) -> str:
    others = share["together_with"]
    beside = f", together with {', '.join(others)}" if others else ""
    return f"by claim {share['claim']} request {share['request']}{beside}"


def claims_of(change: Row) -> str:
    """What a grant came by, from the history's first entry: claim, request and share, one a line;
    empty: by limits, or the entry is of a later change."""
    claims = (change.get("detail") or {}).get("claims") or []
    return "\n".join(
        f"{each['container']}: {each['claim']} request {each['request']}"
        + (f" share {each['share_id']}" if each.get("share_id") else "")
        for each in claims
    )


def cores(percent: int) -> str:
    """A guaranteed share, or the absence of one."""
    return f"{percent} % cores" if percent else "any cores"


def nodes_table(rows: Iterable[Row]) -> Table:
    """Kubernetes nodes with their GPU counts."""
    return table(
        "Nodes",
        ("NODE", "READY", "CARDS' SLOTS", "MOUNTS"),
        (
            (of(row["name"]), of(row["ready"]), of(row["allocatable"]), of(row["mounts"]))
            for row in rows
        ),
    )


def pods_table(rows: Iterable[Row]) -> Table:
    """Pods with the reason beside each one that waits."""
    return table(
        "Pods",
        ("POD", "PHASE", "NODE", "SLICES / WHY IT WAITS"),
        ((of(row["name"]), of(row["phase"]), of(row["node"]), of(row["detail"])) for row in rows),
    )
