"""The nearest card in a few terms: what it lacks, and at what size a slice fits there. Pure."""

from __future__ import annotations

import math

from hami_metrics.pages.domain.nearest import CardLack, NearestNode

_TENTHS = 10 / 1024


def nearest_text(found: NearestNode | None) -> str:
    """`n014 card 3: lacks 1.5 GiB of memory; fits at 38.5 GiB`."""
    if found is None:
        return "no healthy card that is not cordoned"
    if found.fitting == found.wanted:
        where = _where(found.lacks[0]) if found.wanted == 1 else found.node
        return f"{where} has room: the reason is another one"
    if found.wanted > 1:
        missing = found.lacks[found.fitting : found.fitting + 1]
        least = f"; the next: {_lack(missing[0])}" if missing else ""
        return f"{found.node}: {found.fitting} of {found.wanted} cards fit{least}"
    return f"{_where(found.lacks[0])}: {_lack(found.lacks[0])}"


def lack_text(lack: CardLack, wanted: int = 1) -> str:
    """What one card lacks: `lacks 1.5 GiB of memory; fits at 38.5 GiB`.

    `wanted`: cards of one node that the pod asks for.
    """
    if lack.count:
        return _lack(lack)
    if wanted > 1:
        return f"nothing by size, and {wanted} of one node are wanted"
    return "nothing by size: the reason is another one"


def _where(lack: CardLack) -> str:
    return f"{lack.card.node} card {lack.card.index}"


def _lack(lack: CardLack) -> str:
    card = lack.card
    parts, changes = [], []
    if lack.memory_mib:
        parts.append(f"{_up(lack.memory_mib)} of memory")
        changes.append(_down(card.free_mib))
    if lack.core_percent:
        free = max(0, card.core_percent - card.used_core_percent)
        parts.append(f"{lack.core_percent} % of its cores")
        changes.append(f"{free} % cores" if free else "")
    if lack.slot:
        parts.append("a slot")
        changes.append("")
    if lack.held:
        parts.append("to be idle")
        changes.append("")
    text = f"lacks {' and '.join(parts)}"
    # What no smaller size gives is for others to give back.
    if all(changes) and (not lack.memory_mib or card.free_mib):
        return f"{text}; fits at {' and '.join(changes)}"
    return f"{text}; fits when others there end"


def _down(mib: int) -> str:
    """An amount that is there: never more than there is."""
    return f"{mib} MiB" if mib < 1024 else f"{math.floor(mib * _TENTHS) / 10:g} GiB"


def _up(mib: int) -> str:
    """An amount that lacks: never less than what does."""
    return f"{mib} MiB" if mib < 1024 else f"{math.ceil(mib * _TENTHS) / 10:g} GiB"
