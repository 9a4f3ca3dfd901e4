"""Compute changes of MIG instances: an administrator's, and those made for grants. Pure.

NVIDIA's strategies offer existing instances: `none` (cards as they are), `single` (the count
resource counts instances, which are all alike), `mixed` (a resource for each profile:
`nvidia.com/mig-1g.10gb`). The kubelet allocates them; the ledger has slices of the other cards.

For grants, the input is the driver's profiles and instances, the instances that we made (recorded
in the agent's state before they are made), and which of them containers hold. The output is the
profiles as registered (protocol 5.6), and a `PartitionPlan` as data, which `mig_instances.py`
executes. An instance that we did not make is foreign: it is reported, its place is not offered, it
is never destroyed.
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
    """Compute instance within its GPU instance."""

    uuid: str
    card: GpuUuid
    profile: str
    """Profile, such as 1g.10gb, or 1c.2g.20gb for part of a GPU instance."""
    gpu_instance: int
    compute_instance: int
    minor: int | None = None
    """Minor number of the card's device file."""
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLayout:
    """MIG instances of the node's cards."""

    cards: frozenset[GpuUuid] = frozenset()
    """All cards."""
    mig_cards: frozenset[GpuUuid] = frozenset()
    """Cards in MIG mode."""
    instances: tuple[MigInstance, ...] = ()


def profile_name(
    *, gpu_slices: int, compute_slices: int, memory_mib: int, card_memory_bytes: int
) -> str:
    """Return NVIDIA's name of a profile.

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
    """Return resource name -> instances; empty if cards are only offered in slices.

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
"""Operating mode in which cards are cut on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """GPU instance profile as the driver describes it."""

    number: int
    """Number in the family `NVML_GPU_INSTANCE_PROFILE_*`, also of compute instances."""
    profile_id: int
    """Id by which its instances are created and identified."""
    name: str
    """Name such as 1g.10gb; empty if the driver does not name it."""
    slices: int
    memory_mib: int
    multiprocessors: int
    instances: int
    """Number of instances that fit on an empty card."""
    placements: tuple[tuple[int, int], ...]
    """Possible placements as (start, size) in memory slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigOffer:
    """Profiles with which a card in MIG mode is registered."""

    profiles: tuple[MigProfile, ...]
    slots: int
    """Number of instances of the smallest profile, which is the maximum of containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Existing GPU instance."""

    card: GpuUuid
    gpu_instance: int
    start: int
    size: int
    devices: tuple[tuple[int, str], ...]
    """Compute instances as (id, uuid of the MIG device)."""

    @property
    def uuids(self) -> frozenset[str]:
        """Return the uuids by which containers may know it."""
        return frozenset(uuid for _, uuid in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInstance:
    """Instance that we created, or were about to create when this was recorded."""

    card: GpuUuid
    part: MigSlice
    uuid: str = ""
    """Uuid of its MIG device; empty: it may not exist, and no answer names it."""
    gpu_instance: int = 0
    compute_instance: int = 0

    def is_at(self, found: Instance) -> bool:
        """Return whether `found` is this instance, and not a later one of others at its place."""
        return (
            self.card == found.card
            and (self.part.start, self.part.size) == (found.start, found.size)
            and (not self.uuid or self.uuid in found.uuids)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """Changes of existing instances and their records."""

    kept: tuple[OwnInstance, ...] = ()
    """Existing instances of ours that containers hold."""
    destroy: tuple[tuple[OwnInstance, Instance], ...] = ()
    """Existing instances of ours that no container holds, to be destroyed."""
    forget: tuple[OwnInstance, ...] = ()
    """Recorded instances that neither exist nor are held."""
    lost: tuple[OwnInstance, ...] = ()
    """Held instances that do not exist, after a reset, a restart, or an outside deletion."""
    foreign: tuple[Instance, ...] = ()


def plan(
    own: Iterable[OwnInstance], found: Iterable[Instance], held: Collection[str]
) -> PartitionPlan:
    """Compute the changes; `held`: uuids that answers name to containers of live pods."""
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


def merge_plans(plans: Iterable[PartitionPlan]) -> PartitionPlan:
    """Combine the plans of several cards."""
    each = tuple(plans)
    return PartitionPlan(
        kept=tuple(one for found in each for one in found.kept),
        destroy=tuple(one for found in each for one in found.destroy),
        forget=tuple(one for found in each for one in found.forget),
        lost=tuple(one for found in each for one in found.lost),
        foreign=tuple(one for found in each for one in found.foreign),
    )


def in_the_way(part: MigSlice, card: GpuUuid, found: Iterable[Instance]) -> tuple[Instance, ...]:
    """Return the instances that overlap this part of the card."""
    return tuple(one for one in found if one.card == card and part.overlaps(one.start, one.size))


def profile_of(name: str, facts: Sequence[ProfileFacts]) -> ProfileFacts | None:
    """Return the driver's profile that `1g.10gb` names.

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
    """Return the allowed profiles for registration (protocol 5.6); None if the card has none."""
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
    """Return the offer without placements that other owners' instances occupy."""
    others = tuple(taken)

    def free(start: int, size: int) -> bool:
        return all(one.start >= start + size or start >= one.start + one.size for one in others)

    profiles = (
        replace(each, placements=tuple(p for p in each.placements if free(*p)))
        for each in offer.profiles
    )
    return replace(offer, profiles=tuple(each for each in profiles if each.placements))
