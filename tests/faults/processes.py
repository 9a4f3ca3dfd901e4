"""The processes of a running system: found by their names, killed, stopped, and restarted.

`state.json` of the supervisor has the pid of each service. A server such as PostgreSQL is several
processes; each action applies to all of them, as when a machine stops or loses its power.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from hamicommon.k8s.types import Json
from hamilocal.supervisor.ports import free_port

from tests.e2e.system import System, wait

BACK_S = 40.0
"""The supervisor's pauses between restarts grow up to 5 s; PostgreSQL recovers its log."""


def serving_pid(system: System, service: str) -> int:
    """Wait until the service serves."""
    return wait(lambda: system.pid_of(service), f"{service} to be ready", timeout_s=BACK_S)


def kill(system: System, service: str, *, alone: bool = False) -> int:
    """Send SIGKILL to the service and its children together; return the pid that it had.

    With `alone`, the children live on, as the containers of a kubelet do.
    """
    pid = serving_pid(system, service)
    for each in [pid] if alone else _family(pid):
        _signal(each, signal.SIGKILL)
    return pid


def wait_until_back(system: System, service: str, old_pid: int) -> None:
    """Wait until the supervisor has started the service again, and it serves."""
    wait(
        lambda: system.pid_of(service) not in (None, old_pid),
        f"{service} to be back",
        timeout_s=BACK_S,
    )


@contextmanager
def kill_services(system: System, *services: str, alone: bool = False) -> Iterator[None]:
    """Killed when the block begins; when it has ended, the supervisor has started them again."""
    pids = {service: kill(system, service, alone=alone) for service in services}
    yield
    for service, pid in pids.items():
        wait_until_back(system, service, pid)


def crash(system: System, *services: str) -> None:
    """Killed, and started again by the supervisor."""
    with kill_services(system, *services):
        pass


@contextmanager
def suspend_service(system: System, service: str) -> Iterator[None]:
    """SIGSTOP inside the block: to its peers the service is there and does not answer."""
    family = _family(serving_pid(system, service))
    for pid in family:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in family:
            _signal(pid, signal.SIGCONT)


@contextmanager
def take_down_service(system: System, service: str) -> Iterator[None]:
    """Killed inside the block and not started again: its address refuses connections."""
    supervisor = int(json.loads((system.folder / "state.json").read_text())["supervisor"]["pid"])
    _signal(supervisor, signal.SIGSTOP)
    try:
        old = kill(system, service)
        yield
    finally:
        _signal(supervisor, signal.SIGCONT)
    wait_until_back(system, service, old)


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (entry.decode().partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


@contextmanager
def another(
    system: System, service: str, *, changes: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """One more process of the service, started as the first one was but for these variables."""
    pid = serving_pid(system, service)
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=system.folder,
            env=environment_of(pid) | dict(changes),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        # A stopped process does not react to SIGTERM.
        _signal(process.pid, signal.SIGCONT)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def replica(system: System, folder: Path, **changes: str) -> Iterator[tuple[str, int]]:
    """One more scheduler with these variables; its address and pid. It is active, too."""
    url = f"http://127.0.0.1:{free_port()}"
    own = {"HAMI_SCHEDULER_HTTP_BIND": url.removeprefix("http://")}
    with another(system, "scheduler", changes=own | changes, log=folder / "replica.log") as process:
        wait(lambda: _serves(url), "the replica to serve", timeout_s=BACK_S)
        yield url, process.pid


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


@contextmanager
def suspend_process(pid: int) -> Iterator[None]:
    """SIGSTOP inside the block, for a process that the supervisor does not know."""
    _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pid, signal.SIGCONT)


def programs_of(pod: Json) -> list[int]:
    """The processes of the pod's containers: those that write the logs."""
    uid = str(pod["metadata"]["uid"])
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"/pods/{uid}/" in str((entry / "fd/1").readlink()):
                program = (entry / "comm").read_text().strip()
                found += [int(entry.name)] if program == "vgpu-probe" else []
    return found


def _family(pid: int) -> list[int]:
    """The process, then everything below it; backends of PostgreSQL have sessions of their own."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parent = int(stat.rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += parents.get(each, ())
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
