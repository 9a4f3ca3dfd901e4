"""Container runtime: start containers by the launcher, find them after a restart, stop them.

A launcher outlives this process and writes how its container ended, so that nothing is lost when
the kubelet is killed: `recover()` reads the files of the last attempt. They are
`<root>/pods/<uid>/containers/<container>/<attempt>.{launch,pid,exit}`;
`native/launcher/src/launch.h` and `launcher.c` describe their formats.

If this machine permits it, each container has a cgroup, `<hierarchy>/kubelocal-<node's directory,
hashed>/pod<uid>/<container id>` as a kubelet's, so that `/proc/<pid>/cgroup` names pod and
container. The cgroups limit nothing; the launcher removes one with its container.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hamicommon.errors import InvalidRequest, Unavailable

from kubelocal.kubelet.containers.environment import MountMode
from kubelocal.kubelet.devices.state import Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Arguments of one start of a container.

    `rootfs`: directory for its root; None: the host's root. `cgroup`: a directory; None: our own
    cgroup.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: Path
    mounts: Sequence[Mount] = ()
    rootfs: Path | None = None
    cgroup: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pids:
    """Process ids of launcher and container; start times are clock ticks since boot.

    `container` is 0 until the container's program runs.
    """

    launcher: int
    launcher_start: int
    container: int
    container_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExit:
    """Exit of a container: 128+signal if a signal ended it; `message` for a failed start."""

    exit_code: int
    finished_at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """Paths of the files of one start."""

    launch: Path
    pid: Path
    exit: Path

    @classmethod
    def of(cls, directory: Path, attempt: int) -> AttemptFiles:
        """Return the files of the attempt with this number, from 0."""
        return cls(
            launch=directory / f"{attempt}.launch",
            pid=directory / f"{attempt}.pid",
            exit=directory / f"{attempt}.exit",
        )


def encode(launch: Launch) -> bytes:
    """Encode the launch file.

    Raises: InvalidRequest if an argument contains a NUL, which no program can receive.
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
    """Parse the pid file."""
    launcher, launcher_start, container, container_start = map(int, text.split())
    return Pids(
        launcher=launcher,
        launcher_start=launcher_start,
        container=container,
        container_start=container_start,
    )


def parse_exit(text: str) -> ContainerExit:
    """Parse the exit file."""
    code, finished_ns, message = text.rstrip("\n").split(" ", 2)
    finished_at = datetime.fromtimestamp(int(finished_ns) / 1e9, UTC)
    return ContainerExit(exit_code=int(code), finished_at=finished_at, message=message)


# Only version 2; beside version 1; only version 1, in a hierarchy that limits nothing by default.
HIERARCHIES = tuple(
    Path("/sys/fs/cgroup") / each for each in ("cgroup.controllers", "unified", "pids")
)


def container_id(pod_uid: str, container: str, attempt: int) -> str:
    """Return 64 hexadecimal digits, as runtimes name a start of a container."""
    return hashlib.sha256(f"{pod_uid}/{container}/{attempt}".encode()).hexdigest()


class ContainerCgroups:
    """cgroups of one node's containers."""

    def __init__(self, node_dir: Path, hierarchies: Iterable[Path] = HIERARCHIES) -> None:
        name = f"kubelocal-{hashlib.sha256(os.fsencode(node_dir)).hexdigest()[:16]}"
        self._candidates = [_root_of(each) / name for each in hierarchies if each.exists()]

    def make(self, pod_uid: str, container: str) -> Path | None:
        """Create a container's cgroup and return its id; None if that is impossible."""
        for base in self._candidates:
            cgroup = base / f"pod{pod_uid}" / container
            with suppress(OSError):
                cgroup.mkdir(parents=True, exist_ok=True)
                if os.access(cgroup / "cgroup.procs", os.W_OK):
                    return cgroup
        return None


def _root_of(found: Path) -> Path:
    return found.parent if found.name == "cgroup.controllers" else found


# Exit code that a container runtime reports if it doesn't know how a container ended.
UNKNOWN_EXIT_CODE = 137
# The launcher answers within milliseconds; a machine this slow is broken.
START_TIMEOUT_S = 30.0


class StartFailed(Exception):
    """Error: the container's program could not be started; the message has the reason."""

    def __init__(self, ended: ContainerExit) -> None:
        super().__init__(ended.message)
        self.ended = ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredAttempt:
    """Last attempt of a container that an earlier kubelet started."""

    attempt: int
    started_at: datetime
    running: RunningContainer | None
    ended: ContainerExit | None
    previous: ContainerExit | None
    """Exit of the attempt before; None for the first."""


class RunningContainer:
    """Running container, identified by its launcher's pidfd."""

    def __init__(
        self,
        pidfd: int,
        files: AttemptFiles,
        *,
        process: subprocess.Popen[bytes] | None,
        started_at: datetime,
    ) -> None:
        self._pidfd = pidfd
        self._files = files
        self._process = process
        self.started_at = started_at
        self._ended: asyncio.Future[ContainerExit] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    async def wait(self) -> ContainerExit:
        """Wait until the container has ended; return its exit."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask the container's first process to stop (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the container."""
        self._signal(signal.SIGUSR1)

    def release(self) -> None:
        """Release the container, which continues to run."""
        if not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._ended.cancel()

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._process is not None:
            self._process.wait()
        self._ended.set_result(_read_exit(self._files))


class ProcessRuntime:
    """Runtime with containers below `pods_dir`, started by the program `launcher`."""

    def __init__(self, launcher: Path, pods_dir: Path) -> None:
        self._launcher = launcher
        self._pods_dir = pods_dir
        self._cgroups = ContainerCgroups(pods_dir)

    async def detect_mount_mode(self, scratch: Path) -> tuple[MountMode, str]:
        """Find out whether mount namespaces can be created on this machine, and if not, why.

        The test uses the empty directory `scratch`.
        """
        process = await asyncio.create_subprocess_exec(
            self._launcher, "probe", scratch, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(START_TIMEOUT_S):
            output, _ = await process.communicate()
        mode, _, reason = output.decode().strip().partition(" ")
        return MountMode(mode), reason

    def pod_dir(self, pod_uid: str) -> Path:
        """Return the folder of a pod's logs, volumes and launch files."""
        return self._pods_dir / pod_uid

    def log_file(self, pod_uid: str, container: str) -> Path:
        """Return the log file of the container, for all attempts."""
        return self.pod_dir(pod_uid) / f"{container}.log"

    def rootfs(self, pod_uid: str, container: str) -> Path:
        """Create an empty folder on which the container's root is built."""
        return self._container_dir(pod_uid, container) / "rootfs"

    def _container_dir(self, pod_uid: str, container: str) -> Path:
        return self.pod_dir(pod_uid) / "containers" / container

    async def start(
        self, pod_uid: str, container: str, attempt: int, launch: Launch
    ) -> RunningContainer:
        """Start a container and wait until its program runs.

        Raises: StartFailed if it can't be started.
        """
        files = AttemptFiles.of(self._container_dir(pod_uid, container), attempt)
        own = container_id(pod_uid, container, attempt)
        cgroup = await asyncio.to_thread(self._cgroups.make, pod_uid, own)
        launch = replace(launch, cgroup=cgroup)
        process, line = await asyncio.to_thread(self._spawn, files, launch)
        if line.startswith("started "):
            return RunningContainer(
                os.pidfd_open(process.pid),
                files,
                process=process,
                started_at=datetime.now(UTC),
            )
        await asyncio.to_thread(process.wait, START_TIMEOUT_S)
        raise StartFailed(_read_exit(files))

    def _spawn(self, files: AttemptFiles, launch: Launch) -> tuple[subprocess.Popen[bytes], str]:
        files.launch.parent.mkdir(parents=True, exist_ok=True)
        if launch.rootfs is not None:
            launch.rootfs.mkdir(exist_ok=True)
        files.launch.write_bytes(encode(launch))
        command: list[str | Path] = [self._launcher, "run", files.launch, files.pid, files.exit]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={},
            )
        except OSError as exc:
            raise Unavailable(f"the launcher {self._launcher} can't be run: {exc}") from exc
        assert process.stdout is not None
        with process.stdout as answer:
            return process, answer.readline().decode(errors="replace")

    def recover(self, pod_uid: str, container: str) -> RecoveredAttempt | None:
        """Return the last attempt that an earlier kubelet made, or None."""
        directory = self._container_dir(pod_uid, container)
        attempts = sorted(int(file.stem) for file in directory.glob("*.pid"))
        if not attempts:
            return None
        files = AttemptFiles.of(directory, attempts[-1])
        started_at = datetime.fromtimestamp(files.pid.stat().st_mtime, UTC)
        pidfd = None if files.exit.exists() else _open_launcher(files)
        running = (
            None
            if pidfd is None
            else RunningContainer(pidfd, files, process=None, started_at=started_at)
        )
        return RecoveredAttempt(
            attempt=attempts[-1],
            started_at=started_at,
            running=running,
            ended=_read_exit(files) if running is None else None,
            previous=_read_exit(AttemptFiles.of(directory, attempts[-2])) if attempts[1:] else None,
        )

    def known_pods(self) -> list[str]:
        """Return the uids of pods that have a folder."""
        return sorted(entry.name for entry in self._pods_dir.glob("*") if entry.is_dir())

    def running_of(self, pod_uid: str) -> Iterator[RunningContainer]:
        """Return running containers of a pod that an earlier kubelet left."""
        for directory in sorted((self.pod_dir(pod_uid) / "containers").glob("*")):
            recovered = self.recover(pod_uid, directory.name)
            if recovered is not None and recovered.running is not None:
                yield recovered.running

    async def forget(self, pod_uid: str) -> None:
        """Delete the pod's folder."""
        await asyncio.to_thread(shutil.rmtree, self.pod_dir(pod_uid), ignore_errors=True)


def _open_launcher(files: AttemptFiles) -> int | None:
    """Return a pidfd of the launcher, if the pid still belongs to the same process."""
    if files.pid.stat().st_mtime < _boot_time_s():
        return None  # start ticks of different boots can't be compared
    pids = parse_pids(files.pid.read_text())
    try:
        pidfd = os.pidfd_open(pids.launcher)
    except ProcessLookupError:
        return None
    # Checked after opening: the pid can't pass to another process while we hold the pidfd.
    try:
        stat = Path(f"/proc/{pids.launcher}/stat").read_text()
        state, start = (stat.rpartition(")")[2].split()[i] for i in (0, 19))
    except (OSError, IndexError):
        state, start = "", ""
    if start == str(pids.launcher_start) and state != "Z":
        return pidfd
    os.close(pidfd)
    return None


def _boot_time_s() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _read_exit(files: AttemptFiles) -> ContainerExit:
    try:
        return parse_exit(files.exit.read_text())
    except (OSError, ValueError):
        return ContainerExit(
            exit_code=UNKNOWN_EXIT_CODE,
            finished_at=datetime.now(UTC),
            message="The container could not be located when the pod was terminated",
        )


async def stop_containers(root: Path, *, grace_s: float = 2.0) -> int:
    """Send SIGTERM, then after the grace period SIGKILL.

    Return the number of containers stopped.
    """
    runtime = ProcessRuntime(Path(), root / "pods")
    running = [c for uid in runtime.known_pods() for c in runtime.running_of(uid)]
    await stop_all(running, grace_s)
    return len(running)


async def stop_all(running: Sequence[RunningContainer], grace_s: float) -> None:
    """Send SIGTERM, then after the grace period SIGKILL; return when all have ended."""
    for container in running:
        container.terminate()
    waits = [asyncio.ensure_future(container.wait()) for container in running]
    if waits:
        _, alive = await asyncio.wait(waits, timeout=grace_s)
        for container in running:
            container.kill()
        if alive:
            await asyncio.wait(alive)
