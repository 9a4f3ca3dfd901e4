"""Whether processes of a pod live, from the cgroup that the kubelet made for it.

PodResources forgets a pod that was deleted by force at once, while its processes have their grace
period, or hang in the driver; the kubelet can't remove a cgroup that still has processes. Where it
makes none per pod (`cgroupsPerQOS: false`), or where the host's cgroups are not mounted, nothing is
found, and its own state is all there is.
"""

from __future__ import annotations

import errno
import os
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
        elif levels and any(level in child.name for level in _LEVELS) and "pod" not in _leaf(child):
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
        return any(map(_procs, _with_all_below(cgroup)))


def _with_all_below(cgroup: Path) -> Iterator[str]:
    """Iterative: a tenant may nest them as deep as it likes (version 1 has no limit of its own)."""
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
