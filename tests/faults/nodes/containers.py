"""Limits of emulated nodes' containers, read from their processes and not from our ledger.

A container's process is found by the kubelet's pid file; its env is the kernel's, its limits file
is read through its own mount namespace (or, where there is none, at the path that it was given).
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.system import MIB, System

LIMITS = "/etc/hami"
PRINTED = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One container's process."""

    node: str
    pod_uid: str
    container: str
    env: dict[str, str]
    limits: frozenset[str]
    """The lines of its limits file that name a card."""
    seen_mib: frozenset[int]
    """Memory of the cards as the program in it sees it, by CUDA and by NVML."""
    printed: str
    """The beginning of its log, for the message of a failed case."""

    def has_anothers(self, granted: frozenset[str]) -> str:
        """Describe foreign or missing amounts; empty from the container's first moment if none."""
        if sorted(map(_amounts, self.limits)) != sorted(map(_amounts, granted)):
            return f"limits {sorted(self.limits)}, granted {sorted(granted)}"
        sizes = frozenset(int(line.split()[3]) // MIB for line in granted)
        if not self.seen_mib <= sizes:
            return (
                f"sees {sorted(self.seen_mib)} MiB, granted {sorted(sizes)}; "
                f"it printed {self.printed!r} and has {self.env}"
            )
        return ""

    def differs_from(self, granted: frozenset[str]) -> str:
        """How it differs from what the ledger grants; empty: not at all."""
        cards = frozenset(line.split()[1] for line in granted)
        visible = frozenset(self.env.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
        if self.limits != granted:
            return f"limits {sorted(self.limits)}, granted {sorted(granted)}"
        if visible != cards:
            return f"sees {sorted(visible)}, granted {sorted(cards)}"
        return self.has_anothers(granted)


def running_containers(system: System) -> Iterator[Got]:
    """Every container with cards whose process lives now."""
    for file in system.folder.glob("nodes/*/kubelet/pods/*/containers/*/*.pid"):
        pods = file.parents[3]
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text().split()[2])
            env = _environment(pid)
            if "NVIDIA_VISIBLE_DEVICES" not in env:
                continue
            container, uid = file.parent.name, file.parents[2].name
            log = (file.parents[2] / f"{container}.log").read_text()
            yield Got(
                node=pods.parents[1].name,
                pod_uid=uid,
                container=container,
                env=env,
                limits=_limits(pid, file),
                seen_mib=_seen_mib(log),
                printed=log[:PRINTED],
            )


def granted_containers(system: System) -> dict[tuple[str, str, str], frozenset[str]]:
    """(node, pod uid, container) -> the lines of its limits file, by the ledger's live rows."""
    rows = system.sql(
        "SELECT a.node, a.pod_uid, x.container_name, x.device_uuid, x.memory_mib, x.core_percent"
        " FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id"
        " WHERE a.ended_at IS NULL"
    ).splitlines()
    granted: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        node, uid, container, card, memory_mib, core_percent = row.split("|")
        line = f"device {card} memory_bytes {int(memory_mib) * MIB} core_percent {core_percent}"
        granted.setdefault((node, uid, container), set()).add(line)
    return {key: frozenset(lines) for key, lines in granted.items()}


def _amounts(line: str) -> tuple[str, ...]:
    return tuple(line.split()[2:])


def _environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (entry.decode().partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _limits(pid: int, pid_file: Path) -> frozenset[str]:
    arguments = pid_file.with_suffix(".launch").read_text().split("\0")
    host = Path(arguments[arguments.index(LIMITS) - 1])
    own = Path(f"/proc/{pid}/root{LIMITS}")
    folder = own if "rootfs" in arguments else host
    lines = (folder / "limits").read_text().splitlines()
    return frozenset(line for line in lines if line.startswith("device "))


def _seen_mib(log: str) -> frozenset[int]:
    found: set[int] = set()
    for line in log.splitlines():
        if line.startswith('{"event":"device"'):
            event = json.loads(line)
            found |= {event["total_bytes"] // MIB, event["nvml_total_bytes"] // MIB}
    return frozenset(found)
