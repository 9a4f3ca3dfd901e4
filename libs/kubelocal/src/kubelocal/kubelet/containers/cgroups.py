"""A cgroup for each container, where this machine lets us make any: so a process shows whose it is.

    <hierarchy>/kubelocal-<node's directory, hashed>/pod<uid>/<container id>

as a kubelet's, so that `/proc/<pid>/cgroup` names pod and container. They limit nothing; the
launcher removes one with its container.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# Version 2 alone; beside version 1; version 1 alone, in a hierarchy that limits nothing by itself.
HIERARCHIES = tuple(
    Path("/sys/fs/cgroup") / each for each in ("cgroup.controllers", "unified", "pids")
)


def container_id(pod_uid: str, container: str, attempt: int) -> str:
    """64 hexadecimal digits, as runtimes name a start of a container."""
    return hashlib.sha256(f"{pod_uid}/{container}/{attempt}".encode()).hexdigest()


class ContainerCgroups:
    """The cgroups of one node's containers."""

    def __init__(self, node_dir: Path, hierarchies: Iterable[Path] = HIERARCHIES) -> None:
        name = f"kubelocal-{hashlib.sha256(os.fsencode(node_dir)).hexdigest()[:16]}"
        self._candidates = [_root_of(each) / name for each in hierarchies if each.exists()]

    def make(self, pod_uid: str, container: str) -> Path | None:
        """The cgroup of a container (its id); None where none can be made."""
        for base in self._candidates:
            cgroup = base / f"pod{pod_uid}" / container
            with suppress(OSError):
                cgroup.mkdir(parents=True, exist_ok=True)
                if os.access(cgroup / "cgroup.procs", os.W_OK):
                    return cgroup
        return None


def _root_of(found: Path) -> Path:
    return found.parent if found.name == "cgroup.controllers" else found
