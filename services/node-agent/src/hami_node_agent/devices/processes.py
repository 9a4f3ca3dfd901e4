"""Processes on the host, and those of them with a context on a card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LONGEST_SAMPLE_US = 1_000_000
"""Maximum length of a driver's sample (NVML API Reference, nvmlUtilization_t)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """Living process, as the host's /proc shows it."""

    host_pid: int
    inner_pid: int
    """Pid in its innermost namespace."""
    started_ticks: int
    pod_uid: str
    """Uid of its pod, from its cgroup; empty if it has none."""
    container_id: str = ""
    """Id of its container at the runtime, from its cgroup; empty if it has none."""
    static_pod: str = ""
    """Kubelet's uid of a static pod, which the API server does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcesses:
    """Processes with a context on one card, by host pid."""

    pids: frozenset[int] = frozenset()
    busy_percent: Mapping[int, float] | None = None
    """Use by processes that computed since the last call; None: the card can't report it."""
    held_mib: Mapping[int, int | None] = field(default_factory=dict)
    """Memory of each process as the driver reports it; None: the driver does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySample:
    """NVML's sample of one process.

    The mean of the driver's samples after the one that was asked with, up to the newest in which
    the process computed.
    """

    pid: int
    percent: float
    end_us: int
    """End of the newest sample, in microseconds since 1970."""


def busy_shares(
    samples: Iterable[BusySample], *, since_us: int, now_us: int
) -> tuple[dict[int, float], int]:
    """Return the percent per process from `since_us` to the newest sample, and that sample's end.

    A process that computed for a while and then stopped has a mean of that while only; it is scaled
    to the whole time. So are samples that the driver counts for one process although several ran
    (seen on an H100): over some seconds the shares are right, and their sum is the card's.
    """
    found = list(samples)
    newest_us = max((sample.end_us for sample in found), default=since_us)
    # On a card that was busy and is idle now the newest sample is old.
    until_us = max(newest_us, now_us - LONGEST_SAMPLE_US)
    shares: dict[int, float] = {}
    for sample in found:
        if sample.percent <= 100 and since_us < sample.end_us:
            part = (sample.end_us - since_us) / (until_us - since_us)
            shares[sample.pid] = max(shares.get(sample.pid, 0.0), sample.percent * part)
    return shares, newest_us
