"""Cards that the entries of a node's `hami.io/device-cordon` name: by uuid, a part of it, or index.

HAMi takes whole uuids alone. An entry that names no card, or more than one, closes none and is
reported with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hamicommon.clipping import clip
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid

MIN_PREFIX = 8
"""Characters of a uuid that are enough, where one card alone has them: `GPU-aeee`."""
_MAX_SHOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonedCards:
    """The cards that are closed, and the entries that close none."""

    uuids: frozenset[GpuUuid]
    unmatched: Mapping[str, str]
    """Entry -> the reason, as one clause."""


def find_cordoned(entries: Iterable[str], cards: Sequence[GpuDevice]) -> CordonedCards:
    """Which of the node's cards the entries name."""
    uuids: set[GpuUuid] = set()
    unmatched: dict[str, str] = {}
    for entry in sorted(entries):
        named = _named(entry, cards)
        if len(named) == 1:
            uuids.update(named)
        elif named:
            unmatched[entry] = (
                f"'{clip(entry, _MAX_SHOWN)}' matches {len(named)} cards: write a whole uuid"
            )
        else:
            unmatched[entry] = (
                f"'{clip(entry, _MAX_SHOWN)}' is not a card of this node: write its "
                "uuid, the first "
                f"{MIN_PREFIX} characters of it or more, or its index"
            )
    return CordonedCards(uuids=frozenset(uuids), unmatched=unmatched)


def _named(entry: str, cards: Sequence[GpuDevice]) -> list[GpuUuid]:
    """The cards that the entry is true of, by the first of the three ways that finds any."""
    by_uuid = [card.uuid for card in cards if card.uuid == entry]
    by_index = [card.uuid for card in cards if str(card.index) == entry]
    by_prefix = [card.uuid for card in cards if card.uuid.lower().startswith(entry.lower())]
    return by_uuid or by_index or (by_prefix if len(entry) >= MIN_PREFIX else [])
