"""Interpret a container's shared region, and correct it by facts from outside.

Input: a region as `reader.py` read it, and the evidence of which processes live and compute.
Output: the container's use of each card. The region belongs to the tenant: an impossible value is
unknown, never 0, and what an ended process left behind does not count.

A region has the pids that its processes see. Outside, the same process is the one with that pid in
its innermost namespace and that start time; the driver lists the processes that have a context on a
card. Missing evidence proves nothing: a process is gone only if exactly that one was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hami_node_agent.devices.processes import CardProcesses, HostProcess

MAX_BYTES = 2**48
"""Maximum of plausible counters: 256 TiB, more than any card has.

A counter above it has run below zero (HAMi-core after a fork) or was made up.
"""
MAX_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHeld:
    """Memory and use of one process on one card, by its own account."""

    total_bytes: int = 0
    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0
    core_percent: int = 0

    @property
    def plausible(self) -> bool:
        """Return whether all counters have possible values."""
        counters = (self.total_bytes, self.context_bytes, self.module_bytes, self.buffer_bytes)
        return max(counters) <= MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProcess:
    """One process that registered itself in a container's shared region."""

    pid: int
    """Pid as the process sees it."""
    host_pid: int
    """Pid as the host sees it; 0: the library does not know it."""
    started_ticks: int
    """Clock ticks from boot to the process's start; 0: unknown (HAMi's library)."""
    held: tuple[RegionHeld, ...]
    """Memory and cores in use on each card, in the order of `Region.cards`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCard:
    """One card in a container's shared region, with its limits; 0 means no limit."""

    index: int
    uuid: str
    limit_bytes: int
    core_limit_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Content of one container's shared region (limits and use) at one moment."""

    cards: tuple[RegionCard, ...]
    processes: tuple[RegionProcess, ...]
    last_kernel_epoch_s: int = 0
    """Time of the last kernel; 0: unknown."""
    first_kernel_epoch_ms: int = 0
    """Time of the first kernel; 0: none, or unknown with HAMi's library."""
    priority: int = 1
    recent_kernel: int = 0
    utilization_switch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """Use of one card by a container; None is unknown."""

    card: RegionCard
    processes: int
    total_bytes: int | None
    context_bytes: int | None
    module_bytes: int | None
    buffer_bytes: int | None
    core_percent: float | None


def card_uses(
    region: Region,
    *,
    living: Sequence[int],
    measured_percent: Callable[[int, str], float | None],
) -> tuple[CardUse, ...]:
    """Return the container's use of each of its cards.

    `living`: numbers of the processes in the region that have not ended. `measured_percent`: what
    the driver reports that a process of that number computes on the card of that uuid; None where
    it does not report it.
    """
    return tuple(
        _card_use(
            card,
            [region.processes[process].held[number] for process in living],
            [measured_percent(process, card.uuid) for process in living],
        )
        for number, card in enumerate(region.cards)
    )


def _card_use(card: RegionCard, held: list[RegionHeld], measured: list[float | None]) -> CardUse:
    known = all(one.plausible for one in held)
    return CardUse(
        card=card,
        processes=len(held),
        total_bytes=sum(one.total_bytes for one in held) if known else None,
        context_bytes=sum(one.context_bytes for one in held) if known else None,
        module_bytes=sum(one.module_bytes for one in held) if known else None,
        buffer_bytes=sum(one.buffer_bytes for one in held) if known else None,
        core_percent=_core_percent(measured, [one.core_percent for one in held]),
    )


def _core_percent(measured: list[float | None], reported: list[int]) -> float | None:
    """Return the driver's figure if it has one for every process, else that of HAMi's library.

    Its 0 means nothing: it measures only while a core limit is set.
    """
    known = [percent for percent in measured if percent is not None]
    if len(known) == len(measured):
        return min(sum(known), float(MAX_PERCENT))
    itself = sum(percent for percent in reported if 0 <= percent <= MAX_PERCENT)
    return float(min(itself, MAX_PERCENT)) if itself > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts from /proc and the driver at one moment."""

    living: Mapping[int, HostProcess] = field(default_factory=dict)
    """Living ones of the requested processes, by host pid."""
    cards: Mapping[str, CardProcesses] = field(default_factory=dict)
    """Processes on cards, by uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """Facts about one process of a region."""

    host_pid: int = 0
    """Pid on the host; 0: unknown."""
    gone: bool = False


def find(
    process: RegionProcess,
    *,
    pod_uids: Collection[str],
    cards: Iterable[str],
    evidence: Evidence | None,
    known_host_pid: int,
) -> ProcessFacts:
    """Find the host's process for a process of the region of `pod_uids`, which see `cards`.

    `evidence`: None if there is no source of it. `known_host_pid`: the result of an earlier round
    for the same pid and start time; 0: none.
    """
    if evidence is None:
        return ProcessFacts()
    if process.started_ticks:
        host_pid = process.host_pid or known_host_pid
        if host_pid:
            there = evidence.living.get(host_pid)
            lives = there is not None and there.started_ticks == process.started_ticks
            return ProcessFacts(host_pid=host_pid, gone=not lives)
    elif process.host_pid in evidence.living:
        # HAMi's library finds its host pid by trial and may be wrong: good enough for a percentage,
        # not for a death.
        return ProcessFacts(host_pid=process.host_pid)
    candidates = {
        pid
        for uuid in cards
        for pid in evidence.cards.get(uuid, CardProcesses()).pids
        if _may_be(evidence.living.get(pid), process, pod_uids)
    }
    return ProcessFacts(host_pid=candidates.pop()) if len(candidates) == 1 else ProcessFacts()


def _may_be(seen: HostProcess | None, process: RegionProcess, pod_uids: Collection[str]) -> bool:
    if seen is None or seen.inner_pid != process.pid:
        return False
    if process.started_ticks:
        return seen.started_ticks == process.started_ticks and (
            not seen.pod_uid or seen.pod_uid in pod_uids
        )
    return seen.pod_uid in pod_uids


def proven(
    found: ProcessFacts,
    process: RegionProcess,
    *,
    pod_uids: Collection[str],
    evidence: Evidence | None,
) -> HostProcess | None:
    """Return the host's process if /proc confirms that it is this one, in one of these pods.

    A tenant may write another's host pid into its region; only such pairs continue to libvgpu,
    which charges by them.
    """
    seen = None if evidence is None else evidence.living.get(found.host_pid)
    if seen is None or seen.inner_pid != process.pid or seen.pod_uid not in pod_uids:
        return None
    return seen


def percent_of(found: ProcessFacts, uuid: str, evidence: Evidence | None) -> float | None:
    """Return the process's use of a card by the driver's report, 0 to 100; None is unknown."""
    card = None if evidence is None else evidence.cards.get(uuid)
    if not found.host_pid or card is None or card.busy_percent is None:
        return None
    return card.busy_percent.get(found.host_pid, 0.0)
