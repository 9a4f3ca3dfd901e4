"""Which process is meant by a number: a pid together with the moment that process started.

A pid alone is re-used by the kernel; a pid that still has the start time we wrote down is the
process we started. In: a pid (from Popen or from `.hami/state.json`). Out: alive or not, and
signals that hit nothing else. `hamilocal.supervisor.children` and `hamilocal.servers.processes`
act on
these.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot; `start_ticks` counts clock ticks after boot (proc(5), field 22)."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """The kernel's name for this boot; start ticks of different boots are not comparable."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of a running process; None if there is none (a zombie counts as gone)."""
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
    """Whether this very process still runs."""
    return identity_of(process.pid) == process


def send_signal(process: ProcessIdentity, number: signal.Signals, *, group: bool = False) -> bool:
    """Signal this very process, or with `group` its whole process group if it leads one.

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
