"""MIG instances: those that an administrator made, and those that are made for grants. Pure.

Instances that are there are offered by NVIDIA's strategies: `none` (cards are whatever they are),
`single` (the count resource counts instances, which are all alike), `mixed` (a resource for each
profile: `nvidia.com/mig-1g.10gb`). The kubelet hands them out; the ledger has slices of the other
cards.

For grants: in go the driver's profiles and instances, those that we made (in the agent's state,
written down before they are made), and which of them containers hold. Out come profiles as they are
registered (protocol 5.6), and a `PartitionPlan` as data, which `mig_instances.py` carries out. An
instance that we have not made is somebody else's: it is reported, its place is not offered, it is
never destroyed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hamicommon.domain.devices import MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.mig import MigSlice

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
    """Minor number of its card's file."""
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLayout:
    """How the node's cards are cut."""

    cards: frozenset[GpuUuid] = frozenset()
    """All cards."""
    mig_cards: frozenset[GpuUuid] = frozenset()
    """Cards in MIG mode."""
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
        _require_identical(layout)
        return {count_resource: layout.instances}
    domain = count_resource.partition("/")[0]
    by_resource: Mapping[str, list[MigInstance]] = defaultdict(list)
    for instance in layout.instances:
        by_resource[f"{domain}/mig-{instance.profile}"].append(instance)
    return {resource: tuple(found) for resource, found in sorted(by_resource.items())}


def _require_identical(layout: MigLayout) -> None:
    way_out = "partition all cards identically, or set mig_strategy to mixed"
    if layout.mig_cards != layout.cards:
        raise InvalidRequest(
            f"mig_strategy single: {len(layout.mig_cards)} of {len(layout.cards)} cards are in MIG "
            f"mode; {way_out}"
        )
    bare = layout.mig_cards - {instance.card for instance in layout.instances}
    if bare:
        raise InvalidRequest(
            f"mig_strategy single: card {min(bare)} is in MIG mode without any instance; {way_out}"
        )
    profiles = sorted({instance.profile for instance in layout.instances})
    if len(profiles) > 1:
        raise InvalidRequest(
            f"mig_strategy single: there are instances of {', '.join(profiles)}; {way_out}"
        )


MIG = "mig"
"""The operating mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """One GPU instance profile, as the driver has it."""

    number: int
    """Number in the family `NVML_GPU_INSTANCE_PROFILE_*`; compute instances have the same."""
    profile_id: int
    """Id by which its instances are made and known."""
    name: str
    """Such as 1g.10gb; empty where the driver does not name it."""
    slices: int
    memory_mib: int
    multiprocessors: int
    instances: int
    """How many fit on an empty card."""
    placements: tuple[tuple[int, int], ...]
    """(start, size) in memory slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigOffer:
    """Profiles that a card in MIG mode is registered with."""

    profiles: tuple[MigProfile, ...]
    slots: int
    """Instances of the smallest profile: no more containers fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance that is there."""

    card: GpuUuid
    gpu_instance: int
    start: int
    size: int
    devices: tuple[tuple[int, str], ...]
    """(compute instance, uuid of the MIG device) of its compute instances."""

    @property
    def uuids(self) -> frozenset[str]:
        """Return the uuids by which containers may know it."""
        return frozenset(uuid for _, uuid in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInstance:
    """One that we made, or were about to make when this was written down."""

    card: GpuUuid
    part: MigSlice
    uuid: str = ""
    """Uuid of its MIG device; empty: whether it was made is not known, and no answer names it."""
    gpu_instance: int = 0
    compute_instance: int = 0

    def is_at(self, found: Instance) -> bool:
        """Whether that one is ours: at our place, and what we made, not a later one of others."""
        return (
            self.card == found.card
            and (self.part.start, self.part.size) == (found.start, found.size)
            and (not self.uuid or self.uuid in found.uuids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """Changes to the existing instances and to their records."""

    kept: tuple[OwnInstance, ...] = ()
    """There, and held."""
    destroy: tuple[tuple[OwnInstance, Instance], ...] = ()
    """Ours, and nobody holds them."""
    forget: tuple[OwnInstance, ...] = ()
    """Written down, not there, not held."""
    lost: tuple[OwnInstance, ...] = ()
    """Held, and not there: the card was reset, the node restarted, or somebody destroyed it."""
    foreign: tuple[Instance, ...] = ()


def plan(
    own: Iterable[OwnInstance], found: Iterable[Instance], held: Collection[str]
) -> PartitionPlan:
    """`held`: uuids of MIG devices that answers to containers name that are not over."""
    left = list(own)
    kept, destroy, foreign = [], [], []
    for instance in found:
        ours = next((one for one in left if one.is_at(instance)), None)
        if ours is None:
            foreign.append(instance)
            continue
        left.remove(ours)
        if ours.uuid in held:
            kept.append(ours)
        else:
            destroy.append((ours, instance))
    return PartitionPlan(
        kept=tuple(kept),
        destroy=tuple(destroy),
        forget=tuple(one for one in left if one.uuid not in held),
        lost=tuple(one for one in left if one.uuid in held),
        foreign=tuple(foreign),
    )


def joined(plans: Iterable[PartitionPlan]) -> PartitionPlan:
    """Plans of several cards as one."""
    each = tuple(plans)
    return PartitionPlan(
        kept=tuple(one for found in each for one in found.kept),
        destroy=tuple(one for found in each for one in found.destroy),
        forget=tuple(one for found in each for one in found.forget),
        lost=tuple(one for found in each for one in found.lost),
        foreign=tuple(one for found in each for one in found.foreign),
    )


def in_the_way(part: MigSlice, card: GpuUuid, found: Iterable[Instance]) -> tuple[Instance, ...]:
    """The instances with which that part of the card overlaps."""
    return tuple(one for one in found if one.card == card and part.overlaps(one.start, one.size))


def profile_of(name: str, facts: Sequence[ProfileFacts]) -> ProfileFacts | None:
    """The driver's profile that is meant by `1g.10gb`.

    By its name, otherwise by its slices: HAMi's table writes 7g.79gb where an A100's driver has
    7g.80gb.
    """
    named = next((one for one in facts if one.name == name), None)
    if named is not None:
        return named
    slices = name.partition("g.")[0]
    alike = [one for one in facts if str(one.slices) == slices]
    return min(alike, key=lambda one: one.number, default=None)


def offer_of(allowed: Iterable[str], facts: Sequence[ProfileFacts]) -> MigOffer | None:
    """The allowed profiles as they are registered (protocol 5.6); None when the card has none."""
    most = max((one.multiprocessors for one in facts), default=0)
    chosen = [(name, one) for name in allowed if (one := profile_of(name, facts)) is not None]
    if not chosen or not most:
        return None
    return MigOffer(
        profiles=tuple(
            MigProfile(
                name=name,
                memory_mib=one.memory_mib,
                core_percent=math.ceil(one.multiprocessors * 100 / most),
                slice_count=one.slices,
                placements=one.placements,
            )
            for name, one in chosen
        ),
        slots=max(one.instances for _, one in chosen),
    )


def without_places(offer: MigOffer, taken: Iterable[Instance]) -> MigOffer:
    """The offer where somebody else's instances are: nothing can be made in their place."""
    others = tuple(taken)

    def free(start: int, size: int) -> bool:
        return all(one.start >= start + size or start >= one.start + one.size for one in others)

    profiles = (
        replace(each, placements=tuple(p for p in each.placements if free(*p)))
        for each in offer.profiles
    )
    return replace(offer, profiles=tuple(each for each in profiles if each.placements))
