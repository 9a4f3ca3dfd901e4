"""Read the host's processes from /proc, and whether a pod has any, by its cgroup.

In: the host's /proc and cgroups (in a pod: mounts of them, because the pod sees only its own). Out:
`HostProcess` values, some ten microseconds for each process. All calls block.

PodResources forgets a pod that was deleted by force immediately, while its processes have their
grace period, or hang in the driver; the kubelet can't remove a cgroup that still has processes. If
it makes none per pod (`cgroupsPerQOS: false`), or the host's cgroups are not mounted, nothing is
found, and the kubelet's own state is all there is.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
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
MAX_BYTES = 65_536


class HostProcesses:
    """Look up processes; constant facts about a process are read once."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._known: dict[int, HostProcess] = {}

    def living(self, pids: Iterable[int]) -> dict[int, HostProcess]:
        """Return the pids that live (blocking)."""
        found: dict[int, HostProcess] = {}
        known: dict[int, HostProcess] = {}
        for pid in pids:
            started = self._start_ticks(pid)
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

    def _start_ticks(self, pid: int) -> int | None:
        """Return the clock ticks from boot to the process's start.

        None if it is dead or a zombie.
        """
        text = self._text(pid, "stat")
        fields = text[text.rfind(")") + 2 :].split()
        if len(fields) <= _START_FIELD - _STATE_FIELD:
            return None
        # A zombie that still has threads lives: only its first thread has ended.
        if fields[0] in _DEAD and int(fields[20 - _STATE_FIELD]) <= 1:
            return None
        return int(fields[_START_FIELD - _STATE_FIELD])

    def _read(self, pid: int, started_ticks: int) -> tuple[HostProcess, bool]:
        """Read a process.

        Return False if some of it could not be read, so that it is read again.
        """
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
                return os.read(descriptor, MAX_BYTES).decode(errors="replace")
            finally:
                os.close(descriptor)
        except OSError:
            return ""


# kubepods/burstable/pod<uid> below a hierarchy (and an optional cgroupRoot, as kind's /kubelet).
_DEEPEST = 5
_LEVELS = ("kube", "burstable", "besteffort")


class PodCgroups:
    """cgroups of the host, version 1, 2 or both."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has_processes(self, pod_uid: str) -> bool:
        """Return whether the pod's cgroup has a process (blocking, milliseconds)."""
        # The systemd driver writes the uid with underscores and ends the name with `.slice`.
        names = (f"pod{pod_uid}", f"pod{pod_uid.replace('-', '_')}.slice")
        hierarchies = (self._root, *_directories(self._root))
        return any(
            _has_process(found)
            for hierarchy in hierarchies
            for found in _find(hierarchy, names, _DEEPEST)
        )


def _find(folder: Path, names: tuple[str, str], levels: int) -> Iterator[Path]:
    for child in _directories(folder):
        if child.name.endswith(names):
            yield child
        elif levels and any(level in child.name for level in _LEVELS) and "pod" not in _leaf(child):
            yield from _find(child, names, levels - 1)


def _leaf(folder: Path) -> str:
    """Return the last part of a name such as `kubepods-burstable-pod<uid>.slice`."""
    return folder.name.removesuffix(".slice").rpartition("-")[2].removeprefix("kubepods")


def _directories(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir() and not child.is_symlink()]
    except OSError:
        # It went while we looked.
        return []


def _has_process(cgroup: Path) -> bool:
    try:
        # Version 2 counts the whole subtree.
        return "populated 1" in (cgroup / "cgroup.events").read_text()
    except OSError:
        return any(map(_procs, _with_all_below(cgroup)))


def _with_all_below(cgroup: Path) -> Iterator[str]:
    """Yield the cgroup and all below it, without recursion, as tenants may nest them deeply."""
    waiting = [str(cgroup)]
    while waiting:
        folder = waiting.pop()
        yield folder
        try:
            with os.scandir(folder) as found:
                waiting += [each.path for each in found if each.is_dir(follow_symlinks=False)]
        except OSError:
            # It went while we looked.
            continue


def _procs(cgroup: str) -> bool:
    try:
        with open(f"{cgroup}/cgroup.procs", "rb") as file:  # noqa: PTH123 - parses the deep path
            return bool(file.read(1))
    except OSError as exc:
        # Deeper than a path may be long, so it is not known to be empty.
        return exc.errno == errno.ENAMETOOLONG
