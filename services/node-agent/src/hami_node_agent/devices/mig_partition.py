"""MIG instances made for grants: what a card can be cut into, and which instances are whose.

In: the driver's profiles and instances, those that we made (in the agent's state, written down
before they are made), and which of them containers hold. Out: profiles as they are registered
(protocol 5.6), and a `PartitionPlan` as data; `mig_instances.py` carries it out. An instance
that we
have not made is somebody else's: it is reported, its place is not offered, it is never destroyed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hamicommon.domain.devices import MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.mig import MigSlice

MIG = "mig"
"""The operating mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """One GPU instance profile, as the driver has it."""

    number: int
    """Of the family `NVML_GPU_INSTANCE_PROFILE_*`; compute instances have the same."""
    profile_id: int
    """What instances of it are made by, and known by."""
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
    """What a card in MIG mode is registered with."""

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
        """What containers may know it by."""
        return frozenset(uuid for _, uuid in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInstance:
    """One that we made, or were about to make when this was written down."""

    card: GpuUuid
    part: MigSlice
    uuid: str = ""
    """Of its MIG device; empty: whether it was made is not known, and no answer names it."""
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
    """What becomes of the instances that are there, and of what is written down."""

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

    By its name, else by its slices: HAMi's table writes 7g.79gb where an A100's driver has
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
