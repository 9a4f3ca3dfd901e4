"""Cards as nodes report them, and how much of each is granted.

Memory is in MiB, cores in percent of one card (a vendor may use other units, which its module
documents).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hamicommon.clipping import clip
from hamicommon.domain.ids import GpuUuid, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One MIG profile of a card, as the driver reports it."""

    name: str
    memory_mib: int
    core_percent: int
    slice_count: int
    placements: tuple[tuple[int, int], ...]
    """Possible placements as (start, size) pairs in memory slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """Identity and capacity of one card."""

    uuid: GpuUuid
    index: int
    vendor: str
    """HAMi's `commonWord`, such as `NVIDIA`."""
    type: str
    """Product name, such as `NVIDIA A100-SXM4-80GB`."""
    slots: int
    """Number of containers that may share the card."""
    memory_mib: int
    core_percent: int
    """Cores that may be granted: 100 for a whole card, more only with core scaling."""
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Facts that only the vendor understands (network, link zone); JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """All cards of one node at one moment, with pair scores if the node measured them."""

    node: NodeName
    devices: tuple[GpuDevice, ...]
    observed_at: datetime
    pair_scores: dict[GpuUuid, dict[GpuUuid, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.observed_at.tzinfo is None:
            raise ValueError("observed_at must be timezone aware")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """A card with what the ledger has granted on it."""

    device: GpuDevice
    used_slots: int = 0
    used_memory_mib: int = 0
    used_core_percent: int = 0
    cordoned: bool = False
    holdings: tuple[Mapping[str, Any], ...] = ()
    """`DeviceShare.detail` of every live slice on the card that has one, in no particular order."""

    @property
    def free_memory_mib(self) -> int:
        """Memory that may still be granted; negative if a card shrank below its grants."""
        return self.device.memory_mib - self.used_memory_mib

    @property
    def free_core_percent(self) -> int:
        """Cores that may still be granted."""
        return self.device.core_percent - self.used_core_percent


MIN_PREFIX = 8
"""Number of a uuid's first characters that may stand for it, if only one card matches."""
_MAX_SHOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonedCards:
    """Cordoned cards of a node, and entries of its annotation that match no card."""

    uuids: frozenset[GpuUuid]
    unmatched: Mapping[str, str]
    """Entry -> the reason why it matches no card, as a clause."""


def find_cordoned(entries: Iterable[str], cards: Sequence[GpuDevice]) -> CordonedCards:
    """Find the node's cards that the entries of its cordon annotation name."""
    uuids: set[GpuUuid] = set()
    unmatched: dict[str, str] = {}
    for entry in sorted(entries):
        named = _match_cards(entry, cards)
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


def _match_cards(entry: str, cards: Sequence[GpuDevice]) -> list[GpuUuid]:
    """Return the cards that match the entry: by uuid, by index, or by the beginning of the uuid."""
    by_uuid = [card.uuid for card in cards if card.uuid == entry]
    by_index = [card.uuid for card in cards if str(card.index) == entry]
    by_prefix = [card.uuid for card in cards if card.uuid.lower().startswith(entry.lower())]
    return by_uuid or by_index or (by_prefix if len(entry) >= MIN_PREFIX else [])
