"""MIG instances that an administrator made, and the resources they are offered as.

NVIDIA's strategies: `none` (cards are whatever they are), `single` (the count resource counts
instances, which are all alike), `mixed` (a resource for each profile: `nvidia.com/mig-1g.10gb`).
These instances are handed out by the kubelet alone; the ledger has slices of the other cards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

MigStrategy = Literal["none", "single", "mixed"]
MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One compute instance in its GPU instance."""

    uuid: str
    card: GpuUuid
    profile: str
    """Such as 1g.10gb, or 1c.2g.20gb for a part of a GPU instance."""
    gpu_instance: int
    compute_instance: int
    minor: int | None = None
    """Of its card's file."""
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLayout:
    """How the node's cards are cut."""

    cards: frozenset[GpuUuid] = frozenset()
    """All cards."""
    mig_cards: frozenset[GpuUuid] = frozenset()
    """Those in MIG mode."""
    instances: tuple[MigInstance, ...] = ()


def profile_name(
    *, gpu_slices: int, compute_slices: int, memory_mib: int, card_memory_bytes: int
) -> str:
    """NVIDIA's name of a profile.

    Its gigabytes are the card's, rounded up, times the instance's part in eighths, rounded up: an
    instance of 9728 MiB on an 80 GB card is called 10gb (go-nvlib, MIG profiles).
    """
    part = math.ceil(memory_mib * MIB / card_memory_bytes * 8) / 8
    gigabytes = round(part * math.ceil(card_memory_bytes / GIB))
    name = f"{gpu_slices}g.{gigabytes}gb"
    return name if compute_slices == gpu_slices else f"{compute_slices}c.{name}"


def mig_resources(
    layout: MigLayout, strategy: MigStrategy, count_resource: str
) -> dict[str, tuple[MigInstance, ...]]:
    """Resource name -> its instances; empty when cards are offered as slices alone.

    Raises: InvalidRequest when `single` is wanted and the instances are not all alike.
    """
    if strategy == "none" or not layout.mig_cards:
        return {}
    if strategy == "single":
        _require_alike(layout)
        return {count_resource: layout.instances}
    domain = count_resource.partition("/")[0]
    by_resource: Mapping[str, list[MigInstance]] = defaultdict(list)
    for instance in layout.instances:
        by_resource[f"{domain}/mig-{instance.profile}"].append(instance)
    return {resource: tuple(found) for resource, found in sorted(by_resource.items())}


def _require_alike(layout: MigLayout) -> None:
    way_out = "cut all cards alike, or set mig_strategy to mixed"
    if layout.mig_cards != layout.cards:
        raise InvalidRequest(
            f"mig_strategy single: {len(layout.mig_cards)} of {len(layout.cards)} cards are in MIG "
            f"mode; {way_out}"
        )
    bare = layout.mig_cards - {instance.card for instance in layout.instances}
    if bare:
        raise InvalidRequest(
            f"mig_strategy single: card {min(bare)} is in MIG mode and has no instance; {way_out}"
        )
    profiles = sorted({instance.profile for instance in layout.instances})
    if len(profiles) > 1:
        raise InvalidRequest(
            f"mig_strategy single: there are instances of {', '.join(profiles)}; {way_out}"
        )
