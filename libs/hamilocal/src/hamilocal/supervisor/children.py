"""Child processes in separate sessions, which are awaited and killed as a group.

A pid does not identify a process, because the kernel re-uses pids; a pid with the recorded start
time is the process that we started (`ProcessIdentity`). A child's end is seen through a pidfd, and
the process is reaped last. Its pid therefore stays ours until its group has been cleared: no signal
of ours can reach another process that got the same number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hamilocal.supervisor.plan import ChildSpec, ServerError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process; `start_ticks` counts clock ticks after boot (proc(5), field 22)."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """Return the kernel's id of this boot; start ticks of different boots can't be compared."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """Return whether exactly this process still runs."""
    return identity_of(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals, *, group: bool = False) -> bool:
    """Send a signal to exactly this process; with `group` to the process group that it leads.

    Returns False, having signalled nothing, if the process is gone or its pid now belongs to
    another.
    """
    if not is_alive(process):
        return False
    try:
        if group and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


MARKER = "HAMI_LOCAL_SYSTEM"
"""Environment variable in all processes of a local system: the path of its folder."""

_LOG_LIMIT_BYTES = 5 * 1024 * 1024  # a day of a busy service; one older file is kept beside it


class Child:
    """Running child process."""

    def __init__(self, spec: ChildSpec, popen: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.pid = popen.pid
        # None only if it has already ended; then nothing looks for it again.
        self.identity: ProcessIdentity | None = identity_of(popen.pid)
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)

    async def wait(self) -> str:
        """Wait for its end, kill the rest of its process group, and return how it ended."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(self._pidfd, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._pidfd)
        self._signal_group(signal.SIGKILL)
        code = self._popen.wait()
        os.close(self._pidfd)
        return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def terminate(self) -> None:
        """Ask the process for a clean stop."""
        self._popen.send_signal(self.spec.stop_signal)

    def kill(self) -> None:
        """Kill the process and its group immediately."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._popen.returncode is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                # The group consists only of the dead leader.
                return


def spawn(spec: ChildSpec, *, log_path: Path, system: Path) -> Child:
    """Start the process; its output goes to `log_path`, which is rotated first if large.

    Raises:
        ServerError: the program cannot be executed.
    """
    rotate(log_path)
    with log_path.open("ab") as log:
        try:
            popen = subprocess.Popen(
                spec.argv,
                cwd=spec.cwd,
                env=os.environ | dict(spec.env) | {MARKER: str(system)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as exc:
            raise ServerError(f"cannot start {spec.name}: {exc}") from exc
    return Child(spec, popen)


def rotate(log_path: Path) -> None:
    """Rename a large log, replacing the previously renamed one."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if log_path.stat().st_size > _LOG_LIMIT_BYTES:
            log_path.replace(log_path.with_name(log_path.name + ".1"))
    except FileNotFoundError:
        return


def detach(argv: Sequence[str], *, log_path: Path) -> int:
    """Start a command that outlives this process and its terminal (`--detach`); return its pid.

    Its output goes to `log_path`. It is up to the command to run a `Supervisor`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return os.posix_spawn(
            argv[0],
            list(argv),
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ],
            setsid=True,
        )
