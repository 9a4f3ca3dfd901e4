"""Processes on the host, and which of them have a context on a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """A living process, as the host's /proc shows it."""

    host_pid: int
    inner_pid: int
    """In its innermost namespace."""
    started_ticks: int
    pod_uid: str
    """From its cgroup; empty where that names none."""
    container_id: str = ""
    """The runtime's, from its cgroup; empty where that names none."""
    static_pod: str = ""
    """Of a static pod: the kubelet's uid of it, by which the API server does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcesses:
    """The processes that have a context on one card, by host pid."""

    pids: frozenset[int] = frozenset()
    busy_percent: Mapping[int, float] | None = None
    """Who computed since the last look; None where the card can't report it, absent is 0."""
    held_mib: Mapping[int, int | None] = field(default_factory=dict)
    """What the driver reports that each holds; None: it does not know."""
