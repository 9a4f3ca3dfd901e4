"""Choose MIG profile and placement of slices on cards in MIG mode (protocol 1.1).

On a node with MIG cards the choice is made here, card by card as in HAMi's loop. A MIG card is
tried again in place, because one container may get several instances of it. Other cards of the node
are picked once; policies and NUMA binding apply to both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.mig import MigSlice
from hamicommon.placement.choice.selection import best_connected
from hamicommon.placement.rules import BEFORE_NUMA, NUMA_NOT_FIT, PARTIAL, REASONS, Rule
from hamicommon.placement.vendor_policy import (
    Chosen,
    NodeAsk,
    NotChosen,
    VendorRules,
    standard_need,
)

MIG = "mig"
_HIGH_FIRST = ("1g.", "3g.")
"""Profiles placed at the high end first, to keep the low end free for larger ones."""


def may_take_mig(request: DeviceRequest, selection: Selection, cards: Sequence[GpuDevice]) -> bool:
    """Return whether the pod's vgpu-mode allows MIG and a card is in MIG mode."""
    return (not selection.mode or MIG in selection.mode) and any(c.mode == MIG for c in cards)


def sound(usage: DeviceUsage) -> bool:
    """Return whether the placement of each slice on the card is known; if not, no more slices fit.

    Without a record (slices of a HAMi before 2.10, or from before a change of the card's mode), a
    new instance might overlap an existing one.
    """
    recorded = sum(MigSlice.from_detail(held) is not None for held in usage.holdings)
    return recorded >= usage.used_slots if usage.device.mode == MIG else recorded == 0


def cut(
    profiles: Sequence[MigProfile], memory_mib: int, taken: Sequence[MigSlice]
) -> tuple[MigProfile, MigSlice] | None:
    """Return the smallest profile with this much memory at its first free placement."""
    for profile in sorted(profiles, key=lambda p: (p.memory_mib, p.slice_count)):
        if profile.memory_mib < memory_mib:
            continue
        high_first = profile.name.startswith(_HIGH_FIRST)
        for start, size in sorted(profile.placements, reverse=high_first):
            if not any(part.overlaps(start, size) for part in taken):
                return profile, MigSlice(profile=profile.name, start=start, size=size)
    return None


def choose_slices(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose cards and MIG slices of one node.

    All profiles that the node registered count, because the allowlist of its own configuration has
    selected them (protocol 5.6).
    """
    return _Walk(ask).run()


class _Walk:
    """HAMi's loop over one node's cards."""

    def __init__(self, ask: NodeAsk) -> None:
        self._ask = ask
        self._collects = "topology-aware" in ask.policies
        self._reasons: Counter[str] = Counter()
        self._picks: list[DeviceUsage] = []
        self._full: dict[GpuUuid, Rule] = {}
        """MIG cards without a free placement for one more instance of the size."""
        self._largest = 0
        """Picks in the NUMA group that has the most."""

    def run(self) -> Chosen | NotChosen:
        count = self._ask.request.count
        group: int | None = None
        for usage, rule in zip(self._ask.cards, self._ask.rules, strict=True):
            if rule in BEFORE_NUMA:
                self._reasons[REASONS[rule]] += 1
                continue
            if self._ask.selection.numa_bind and usage.device.numa != group:
                if not self._collects:
                    self._reasons[NUMA_NOT_FIT] += len(self._picks)
                self._picks, group = [], usage.device.numa
            if rule != Rule.FITS:
                self._reasons[REASONS[rule]] += 1
                continue
            self._try(usage)
            # The last group decides if whole groups are collected.
            picks = len(self._picks)
            self._largest = picks if self._collects else max(self._largest, picks)
            if len(self._picks) == count and not self._collects:
                break
        if len(self._picks) < count:
            self._reasons[PARTIAL] = len(self._picks)
            return NotChosen(
                reasons={reason: n for reason, n in self._reasons.items() if n},
                refused=self._full,
                limit=self._limit(),
                fitting=self._largest,
            )
        return Chosen(shares=tuple(self._shares(self._best())))

    def _limit(self) -> str:
        if self._ask.selection.numa_bind:
            return "on one NUMA node"
        return "as MIG instances" if any(c.device.mode == MIG for c in self._ask.cards) else ""

    def _try(self, usage: DeviceUsage) -> None:
        """Use the card once, or, in MIG mode, for as many instances as fit and are requested."""
        if usage.device.mode != MIG:
            self._picks.append(usage)
            return
        taken = _slices_on(usage)
        if cut(usage.device.mig_profiles, self._memory_on(usage), taken) is None:
            self._full[usage.device.uuid] = Rule.MIG_TOPOLOGY
        while self._collects or len(self._picks) < self._ask.request.count:
            found = cut(usage.device.mig_profiles, self._memory_on(usage), taken)
            if found is None:
                self._reasons[REASONS[Rule.MIG_TOPOLOGY]] += 1
                return
            taken.append(found[1])
            self._picks.append(usage)

    def _best(self) -> list[DeviceUsage]:
        if not self._collects:
            return self._picks
        pairs = self._ask.pairs
        uuids = [usage.device.uuid for usage in self._picks]
        scores = [[pairs.get(a, {}).get(b, 0) for b in uuids] for a in uuids]
        places = tuple(range(len(uuids)))
        matrix = np.array(scores, np.int64) if pairs else None
        return [self._picks[i] for i in best_connected(places, self._ask.request.count, matrix)]

    def _shares(self, picks: Sequence[DeviceUsage]) -> Iterator[DeviceShare]:
        taken = {usage.device.uuid: _slices_on(usage) for usage in picks}
        free_core = {usage.device.uuid: usage.free_core_percent for usage in picks}
        for usage in picks:
            uuid = usage.device.uuid
            need = standard_need(self._ask.request, self._ask.selection, usage.device)
            if usage.device.mode != MIG:
                yield self._share(usage, need.memory_mib, need.core)
                continue
            found = cut(usage.device.mig_profiles, need.memory_mib, taken[uuid])
            assert found is not None, "the walk picked the card because there was room"
            profile, part = found
            taken[uuid].append(part)
            # Profiles' percents are rounded up, so a card full of slices may add up to 105.
            core = max(0, min(profile.core_percent, free_core[uuid]))
            free_core[uuid] -= core
            yield self._share(usage, profile.memory_mib, core, part)

    def _share(
        self, usage: DeviceUsage, memory_mib: int, core: int, part: MigSlice | None = None
    ) -> DeviceShare:
        return DeviceShare(
            uuid=usage.device.uuid,
            vendor=self._ask.request.vendor,
            memory_mib=memory_mib,
            core_percent=core,
            detail=part.detail if part else {},
        )

    def _memory_on(self, usage: DeviceUsage) -> int:
        return self._ask.request.memory_mib_on(usage.device.memory_mib)


def _slices_on(usage: DeviceUsage) -> list[MigSlice]:
    parts = map(MigSlice.from_detail, usage.holdings)
    return [part for part in parts if part is not None]


RULES = VendorRules(
    chooser=choose_slices,
    chooser_rules=(Rule.MIG_TOPOLOGY,),
    chooser_decides=True,
    applies=may_take_mig,
    reuses_card=True,
    sound=sound,
)
"""Rules: the standard loop, and a chooser of MIG slices on nodes with MIG cards."""
