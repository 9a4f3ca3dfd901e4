"""The files between us and the launcher (native/launcher): launch, pid and exit file of one start.

Their forms are described in `native/launcher/src/launch.h` and `launcher.c`. They lie in
`<root>/pods/<uid>/containers/<container>/<attempt>.{launch,pid,exit}`, so that a restarted kubelet
finds every container again; `runtime.py` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hamicommon.errors import InvalidRequest

from kubelocal.kubelet.devices.types import Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of one container. `rootfs` is where its root is built; None: the host's root.
    `cgroup`: a directory; None: it stays in ours."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: Path
    mounts: Sequence[Mount] = ()
    rootfs: Path | None = None
    cgroup: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pids:
    """The launcher's and the container's process; starts are clock ticks since boot.

    `container` is 0 until the container's program runs.
    """

    launcher: int
    launcher_start: int
    container: int
    container_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a container ended: 128+signal when a signal ended it; `message` for a failed start."""

    exit_code: int
    finished_at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """Paths of one start."""

    launch: Path
    pid: Path
    exit: Path

    @classmethod
    def of(cls, directory: Path, attempt: int) -> AttemptFiles:
        """Files of the attempt with this number; the first is 0."""
        return cls(
            launch=directory / f"{attempt}.launch",
            pid=directory / f"{attempt}.pid",
            exit=directory / f"{attempt}.exit",
        )


def encode(launch: Launch) -> bytes:
    """The launch file.

    Raises: InvalidRequest when an argument holds a NUL, which no program can be given.
    """
    fields = ["cwd", launch.cwd, "log", str(launch.log)]
    if launch.rootfs is not None:
        fields += ["rootfs", str(launch.rootfs)]
        for mount in launch.mounts:
            mode = "ro" if mount.read_only else "rw"
            fields += ["mount", mode, mount.host_path, mount.container_path]
    if launch.cgroup is not None:
        fields += ["cgroup", str(launch.cgroup)]
    for name, value in launch.env.items():
        fields += ["env", f"{name}={value}"]
    for argument in launch.argv:
        fields += ["arg", argument]
    if any("\0" in field for field in fields):
        raise InvalidRequest("command, environment and mounts of a container may not hold a NUL")
    return b"".join(field.encode() + b"\0" for field in fields)


def parse_pids(text: str) -> Pids:
    """The pid file's content."""
    launcher, launcher_start, container, container_start = map(int, text.split())
    return Pids(
        launcher=launcher,
        launcher_start=launcher_start,
        container=container,
        container_start=container_start,
    )


def parse_exit(text: str) -> Ended:
    """The exit file's content."""
    code, finished_ns, message = text.rstrip("\n").split(" ", 2)
    finished_at = datetime.fromtimestamp(int(finished_ns) / 1e9, UTC)
    return Ended(exit_code=int(code), finished_at=finished_at, message=message)
