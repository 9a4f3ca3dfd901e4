"""Whether processes of a pod live, from the cgroup that the kubelet made for it.

PodResources forgets a pod that was deleted by force at once, while its processes have their grace
period, or hang in the driver; the kubelet can't remove a cgroup that still has processes. Where it
makes none per pod (`cgroupsPerQOS: false`), or where the host's cgroups are not mounted, nothing is
found, and its books are all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# kubepods/burstable/pod<uid> below a hierarchy (and an optional cgroupRoot, as kind's /kubelet).
_DEEPEST = 5
_LEVELS = ("kube", "burstable", "besteffort")


class PodCgroups:
    """The cgroups of the host, of version 1, 2 or both."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def populated(self, pod_uid: str) -> bool:
        """True when the pod's cgroup holds a process (blocking, milliseconds)."""
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
        elif levels and any(word in child.name for word in _LEVELS) and "pod" not in _leaf(child):
            yield from _find(child, names, levels - 1)


def _leaf(folder: Path) -> str:
    """The last part of a name such as `kubepods-burstable-pod<uid>.slice`: pods end with theirs."""
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
        return any(_procs(folder) for folder in (cgroup, *_below(cgroup)))


def _below(cgroup: Path) -> Iterator[Path]:
    for child in _directories(cgroup):
        yield child
        yield from _below(child)


def _procs(cgroup: Path) -> bool:
    try:
        return bool((cgroup / "cgroup.procs").read_bytes())
    except OSError:
        return False
