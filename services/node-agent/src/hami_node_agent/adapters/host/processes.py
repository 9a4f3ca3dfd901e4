"""Processes of the host, as its /proc shows them: namespaces, start times, the pods they are of.

In: the host's /proc (in a pod: a mount of it, because the pod sees its own processes alone). Out:
`HostProcess` values. Calls block, some ten microseconds for each process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hami_node_agent.devices.processes import HostProcess

# kubepods-burstable-pod<uid>.slice (systemd writes the uid with underscores) or kubepods/pod<uid>;
# a static pod's is a hash, by which the API server does not know it.
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_STATIC_POD = re.compile(r"kubepods[^:\n]*pod([0-9a-f]{32})(?![0-9a-f])")
# <id>, cri-containerd-<id>.scope, crio-<id>.scope. A container may make cgroups below its own, so
# what stands first counts.
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
# Fields of /proc/<pid>/stat are counted from 1; the name, the second, may hold anything.
_STATE_FIELD = 3
_START_FIELD = 22
_DEAD = frozenset("ZXx")
MOST_BYTES = 65_536


class HostProcesses:
    """Looks processes up; what never changes in a process's life is read once."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._known: dict[int, HostProcess] = {}

    def living(self, pids: Iterable[int]) -> dict[int, HostProcess]:
        """Those of the pids that live (blocking)."""
        found: dict[int, HostProcess] = {}
        known: dict[int, HostProcess] = {}
        for pid in pids:
            started = self._started(pid)
            if started is None:
                continue
            process = self._known.get(pid)
            if process is None or process.started_ticks != started:
                process, whole = self._read(pid, started)
            else:
                whole = True
            found[pid] = process
            if whole:
                known[pid] = process
        self._known = known
        return found

    def _started(self, pid: int) -> int | None:
        """Clock ticks from boot to the start; None when it is dead or a zombie."""
        text = self._text(pid, "stat")
        fields = text[text.rfind(")") + 2 :].split()
        if len(fields) <= _START_FIELD - _STATE_FIELD:
            return None
        # A zombie that still has threads lives: only its first thread has ended.
        if fields[0] in _DEAD and int(fields[20 - _STATE_FIELD]) <= 1:
            return None
        return int(fields[_START_FIELD - _STATE_FIELD])

    def _read(self, pid: int, started_ticks: int) -> tuple[HostProcess, bool]:
        """The process, and whether all of it could be read: what could not is read again."""
        inner, status = pid, self._text(pid, "status")
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                inner = int(line.split()[-1])
        cgroup = self._text(pid, "cgroup")
        pod, static = _POD.search(cgroup), _STATIC_POD.search(cgroup)
        container = _CONTAINER.search(cgroup)
        process = HostProcess(
            host_pid=pid,
            inner_pid=inner,
            started_ticks=started_ticks,
            pod_uid="" if pod is None else pod[1].replace("_", "-"),
            container_id="" if container is None else container[1],
            static_pod="" if static is None else static[1],
        )
        return process, bool(status and cgroup)

    def _text(self, pid: int, name: str) -> str:
        try:
            # A file object costs as much again as the three calls, of each process at each look.
            descriptor = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # The kernel gives a file of /proc whole, these within a page but for deep cgroups.
                return os.read(descriptor, MOST_BYTES).decode(errors="replace")
            finally:
                os.close(descriptor)
        except OSError:
            return ""
