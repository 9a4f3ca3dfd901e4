"""Which process on the host a process of a region is: who lives, and who computes how much.

A region names its processes as they see themselves. Outside, the same process is one with that pid
in its innermost namespace and that start time; the driver lists those that have a context on a
card. Nothing is concluded from not knowing: a process is gone only when exactly that one was there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.usage.regions.accounting import RegionProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen outside the regions in one round."""

    living: Mapping[int, HostProcess] = field(default_factory=dict)
    """By host pid: of the pids that were asked for those that live."""
    cards: Mapping[str, CardProcesses] = field(default_factory=dict)
    """By uuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of one process of a region."""

    host_pid: int = 0
    """0: unknown."""
    gone: bool = False


def find(
    process: RegionProcess,
    *,
    pod_uids: Collection[str],
    cards: Iterable[str],
    evidence: Evidence | None,
    known_host_pid: int,
) -> Found:
    """Finds a process of the region of `pod_uids`, whose containers see `cards`.

    `evidence`: None where nobody can be asked. `known_host_pid`: what an earlier round found for
    the same pid and start time; 0: nothing.
    """
    if evidence is None:
        return Found()
    if process.started_ticks:
        host_pid = process.host_pid or known_host_pid
        if host_pid:
            there = evidence.living.get(host_pid)
            lives = there is not None and there.started_ticks == process.started_ticks
            return Found(host_pid=host_pid, gone=not lives)
    elif process.host_pid in evidence.living:
        # HAMi's library finds its host pid by trial and may be wrong: good enough for a percentage,
        # not for a death.
        return Found(host_pid=process.host_pid)
    candidates = {
        pid
        for uuid in cards
        for pid in evidence.cards.get(uuid, CardProcesses()).pids
        if _may_be(evidence.living.get(pid), process, pod_uids)
    }
    return Found(host_pid=candidates.pop()) if len(candidates) == 1 else Found()


def _may_be(seen: HostProcess | None, process: RegionProcess, pod_uids: Collection[str]) -> bool:
    if seen is None or seen.inner_pid != process.pid:
        return False
    if process.started_ticks:
        return seen.started_ticks == process.started_ticks and (
            not seen.pod_uid or seen.pod_uid in pod_uids
        )
    return seen.pod_uid in pod_uids


def proven(
    found: Found, process: RegionProcess, *, pod_uids: Collection[str], evidence: Evidence | None
) -> HostProcess | None:
    """The process with this host pid, where the host itself shows it as that one of these pods.

    A tenant may write another's host pid into its region; only such pairs go on to libvgpu, which
    charges by them.
    """
    seen = None if evidence is None else evidence.living.get(found.host_pid)
    if seen is None or seen.inner_pid != process.pid or seen.pod_uid not in pod_uids:
        return None
    return seen


def percent_of(found: Found, uuid: str, evidence: Evidence | None) -> float | None:
    """What the process computes on a card by the driver's report, 0 to 100; None is unknown."""
    card = None if evidence is None else evidence.cards.get(uuid)
    if not found.host_pid or card is None or card.busy_percent is None:
        return None
    return card.busy_percent.get(found.host_pid, 0.0)
