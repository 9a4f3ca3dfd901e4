"""Read and write `.hami/state.json`: processes of the local system, and their addresses.

Written by the supervisor at every change, in one rename; read by every other command. If the
supervisor was killed, the next start finds its children here and by their environment marker.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from hamilocal.supervisor.children import (
    MARKER,
    ProcessIdentity,
    identity_of,
    is_alive,
    send_signal,
)

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_GRACE_S = 10.0


class SupervisorError(Exception):
    """Error: the local system can't run; the message names the part and the reason."""


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Replace the file atomically.

    Raises:
        SupervisorError: it can't be written; the old one stays whole.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(mode=0o600)  # it holds the database's address and, perhaps, its password
        partial.write_bytes(orjson.dumps(state, option=orjson.OPT_INDENT_2))
        partial.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SupervisorError(f"{path} can't be written: {exc}") from exc


def read_state(path: Path) -> dict[str, Any] | None:
    """Read the last supervisor's file; None if missing or damaged."""
    try:
        state = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    return cast(dict[str, Any], state) if isinstance(state, dict) else None


def identity_from(entry: Mapping[str, Any] | None) -> ProcessIdentity | None:
    """Return the process that an entry of the file names; None if it names none."""
    if entry is None:
        return None
    try:
        return ProcessIdentity(
            pid=int(entry["pid"]),
            start_ticks=int(entry["start_ticks"]),
            boot_id=str(entry["boot_id"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def running_supervisor(path: Path) -> ProcessIdentity | None:
    """Return the supervisor that owns this file, if it is alive."""
    supervisor = identity_from((read_state(path) or {}).get("supervisor"))
    return supervisor if supervisor is not None and is_alive(supervisor) else None


def claim(path: Path) -> None:
    """Make sure that no process of an earlier run is left, before any server is prepared.

    Raises:
        SupervisorError: another supervisor runs on this folder.
    """
    other = running_supervisor(path)
    if other is not None and other.pid != os.getpid():
        raise SupervisorError(
            f"the local system in {path.parent} already runs (process {other.pid})"
        )
    stale = end_stale(path)
    if stale:
        logger.warning("Ended the processes of a killed supervisor", extra={"pids": stale})


def stop_running(path: Path, *, timeout_s: float = 60.0) -> bool:
    """Ask the running supervisor to stop everything and wait for it (`hamictl down`).

    Returns False if none was running; what a killed one left behind is ended in either case.
    """
    supervisor = running_supervisor(path)
    if supervisor is not None:
        send_signal(supervisor, signal.SIGTERM)
        for hung in _wait_gone([supervisor], timeout_s):
            send_signal(hung, signal.SIGKILL)
    end_stale(path)
    return supervisor is not None


def end_stale(path: Path) -> list[int]:
    """End processes that a killed supervisor left behind; return their pids.

    They are those that the file names, by pid and start time, and those that carry our marker.
    Children are asked in the reverse of the order in which they were started.
    """
    services = (read_state(path) or {}).get("services") or {}
    named = [identity_from(entry) for entry in reversed(list(services.values()))]
    stale = [process for process in named if process is not None and is_alive(process)]
    stale += [process for process in marked_processes(path.parent) if process not in stale]
    stops = {
        process: signal.Signals(int(entry.get("stop_signal", signal.SIGTERM)))
        for entry in services.values()
        if (process := identity_from(entry)) is not None
    }
    for process in stale:
        send_signal(process, stops.get(process, signal.SIGTERM))
    for process in _wait_gone(stale, _GRACE_S):
        send_signal(process, signal.SIGKILL, group=True)
    return [process.pid for process in stale]


def marked_processes(system: Path) -> list[ProcessIdentity]:
    """Return every process whose environment has the marker of this folder's system.

    We and the processes we run under are left out.
    """
    wanted = f"{MARKER}={system}".encode()
    ours = _ancestors()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                process = identity_of(int(entry.name))
                if process is not None:
                    found.append(process)
    return found


def _ancestors() -> set[int]:
    pids = {os.getpid()}
    pid = os.getppid()
    while pid > 0:
        pids.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return pids


def _wait_gone(processes: list[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    """Wait for processes to end; return those that are still alive afterwards."""
    deadline = time.monotonic() + timeout_s
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if is_alive(process)]
        if left:
            time.sleep(_POLL_S)
    return left
