"""Limits file, from which libvgpu reads a container's limits; replaced atomically.

    hami-limits 1
    policy default|force|disable
    oversubscribe 0|1
    device <GPU-uuid> memory_bytes <n> core_percent <n>
    region <path>               where its processes keep their accounts, as the container sees it
    utilization_switch 0        only while the core limit is relaxed
    priority_block 1 <Unix time in seconds>
                                only while a container of higher priority works; the block ends at
                                this time unless the agent extends it

Libraries older than that field ignore it, and wait until the line is gone.
A file without `region` is an older agent's: there CUDA_DEVICE_MEMORY_SHARED_CACHE names the path,
which a tenant can set for each process to get a slice for each. memory_bytes 0 means no memory
limit; core_percent 0 or >= 100 no core limit. A visible card that is not listed may not be used.

The file `pids` beside it has a line "<pid in the container> <pid on the host> <start time>" for
each process whose host pid is known: the driver counts by host pids, which a container can't see.
The start time (clock ticks since boot, as in /proc/<pid>/stat) separates processes with equal pids
in containers that share the slice. Older libraries read only the two pids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hamicommon.domain.allocations import DeviceShare

MIB = 1024 * 1024


_FEEDBACK_KEYS = ("utilization_switch ", "priority_block ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFeedback:
    """Result of the feedback loop for one container (`feedback.py`)."""

    relaxed: bool = False
    """Whether the core limit is lifted, if the core policy is `default`."""
    waits_until_s: int = 0
    """Unix time until which the container's launches are blocked; 0: they are not."""


def limits_text(
    shares: Sequence[DeviceShare],
    *,
    policy: str,
    oversubscribe: bool,
    region: str,
    feedback: CoreFeedback = CoreFeedback(),
) -> str:
    """Return the file's content for these slices; `region` is an absolute path in the container."""
    lines = ["hami-limits 1", f"policy {policy}", f"oversubscribe {int(oversubscribe)}"]
    lines += [
        f"device {share.uuid} memory_bytes {share.memory_mib * MIB}"
        f" core_percent {share.core_percent}"
        for share in shares
    ]
    lines.append(f"region {region}")
    return with_feedback("\n".join(lines) + "\n", feedback)


def with_feedback(text: str, feedback: CoreFeedback) -> str:
    """Return the file's content with another result of the feedback loop."""
    lines = [line for line in text.splitlines() if not line.startswith(_FEEDBACK_KEYS)]
    lines += ["utilization_switch 0"] if feedback.relaxed else []
    lines += [f"priority_block 1 {feedback.waits_until_s}"] if feedback.waits_until_s else []
    return "\n".join(lines) + "\n"


class HostPid(NamedTuple):
    """Process of a container, as the host's /proc shows it."""

    inner_pid: int
    """Pid in its innermost namespace."""
    host_pid: int
    started_ticks: int
    """Start time in clock ticks since boot."""


def pids_text(pids: Iterable[HostPid]) -> str:
    """Return the content of the file `pids`."""
    return "".join(f"{inner} {host} {ticks}\n" for inner, host, ticks in sorted(pids))
