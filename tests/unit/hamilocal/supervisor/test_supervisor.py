# ruff: noqa: ASYNC220, ASYNC222 - polls with a deadline and short-lived processes
"""The supervisor over real processes."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hamilocal.servers.data import valkey
from hamilocal.supervisor.children import MARKER, detach, identity_of, rotate
from hamilocal.supervisor.plan import (
    ChildSpec,
    NotReadyError,
    Spec,
    StepSpec,
    http_health,
    server_child,
)
from hamilocal.supervisor.ports import free_port
from hamilocal.supervisor.state_file import (
    SupervisorError,
    read_state,
    running_supervisor,
    stop_running,
)
from hamilocal.supervisor.supervisor import Phase, RestartPolicy, Supervisor

from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

SLEEPER = "import signal; signal.pause()"


def child(tmp_path: Path, name: str, program: str = SLEEPER, **fields: object) -> ChildSpec:
    spec = ChildSpec(name=name, argv=(sys.executable, "-c", program), cwd=tmp_path)
    return replace(spec, **fields)


@asynccontextmanager
async def running(tmp_path: Path, *specs: Spec, **options: object) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(specs, folder=tmp_path / ".hami", **options)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.stop()
        await asyncio.wait_for(task, PATIENCE_S)


async def ready(supervisor: Supervisor) -> None:
    await eventually(lambda: all(s.phase is Phase.READY for s in supervisor.states.values()))


def pid_of(supervisor: Supervisor, name: str) -> int | None:
    running = supervisor.states[name].child
    return None if running is None else running.pid


async def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    log = tmp_path / "order"
    noting = textwrap.dedent("""
        import signal, sys, pathlib
        def note(line):
            with open("order", "a") as file: file.write(f"{line} {sys.argv[1]}\\n")
        def stop(*_):
            note("stop"); sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        note("start")
        pathlib.Path(sys.argv[1]).touch()
        signal.pause()
    """)

    def spec(name: str, *after: str) -> ChildSpec:
        async def check_file() -> None:
            if not (tmp_path / name).exists():
                raise NotReadyError("not yet")

        argv = (sys.executable, "-c", noting, name)
        return child(tmp_path, name, argv=argv, health=check_file, after=after)

    async with running(tmp_path, spec("a"), spec("b", "a"), spec("c", "b")) as supervisor:
        await ready(supervisor)
    assert log.read_text().split("\n")[:-1] == [
        "start a", "start b", "start c", "stop c", "stop b", "stop a",
    ]  # fmt: skip


async def test_a_killed_server_comes_back_on_its_port(tmp_path: Path) -> None:
    plan = valkey.prepare(tmp_path / "redis")
    async with running(tmp_path, server_child(plan)) as supervisor:
        await ready(supervisor)
        first = pid_of(supervisor, "redis")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: pid_of(supervisor, "redis") not in (None, first))
        await eventually(lambda: supervisor.states["redis"].phase is Phase.READY)
        plan.probe()
        assert supervisor.states["redis"].restarts == 1


async def test_health_over_http_decides_when_a_child_is_ready(tmp_path: Path) -> None:
    port = free_port()
    argv = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    health = http_health(f"http://127.0.0.1:{port}/")
    async with running(tmp_path, child(tmp_path, "web", argv=argv, health=health)) as supervisor:
        await ready(supervisor)
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            assert supervisor.states["web"].unhealthy == ""


async def test_a_child_that_never_lives_is_given_up_with_its_reason(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=0.01, max_exits=3)
    broken = child(tmp_path, "broken", "import sys; sys.exit(3)", health=_never)
    async with running(tmp_path, broken, policy=policy) as supervisor:
        state = supervisor.states["broken"]
        await eventually(lambda: state.phase is Phase.GIVEN_UP)
        assert state.reason == "exit status 3; given up after 3 ends within 600 s"
        assert (state.restarts, state.child) == (2, None)


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=0.01, max_exits=2)
    spec = child(tmp_path, "ghost", argv=("/no/such/program",))
    async with running(tmp_path, spec, policy=policy) as supervisor:
        state = supervisor.states["ghost"]
        await eventually(lambda: state.phase is Phase.GIVEN_UP)
        assert re.match(r"cannot start ghost: .*/no/such/program", state.reason)


async def test_a_step_is_repeated_until_it_succeeds_and_holds_back_what_follows(
    tmp_path: Path,
) -> None:
    attempts: list[int] = []

    async def migrate() -> None:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise NotReadyError("database is starting")

    step = StepSpec(name="migrate", run=migrate)
    after = child(tmp_path, "service", after=("migrate",))
    async with running(tmp_path, step, after) as supervisor:
        await ready(supervisor)
        assert attempts == [0, 1, 2]


async def test_a_child_that_is_not_ready_in_time_is_killed_and_started_again(
    tmp_path: Path,
) -> None:
    policy = RestartPolicy(first_pause_s=0.01, max_exits=2)
    slow = child(tmp_path, "slow", health=_never, start_timeout_s=0.2)
    async with running(tmp_path, slow, policy=policy) as supervisor:
        state = supervisor.states["slow"]
        await eventually(lambda: state.phase is Phase.GIVEN_UP)
        assert state.reason.startswith("killed by SIGKILL; given up after 2 ends")


async def test_a_step_that_takes_too_long_is_tried_again(tmp_path: Path) -> None:
    attempts: list[int] = []

    async def hangs_once() -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            await asyncio.Event().wait()

    step = StepSpec(name="migrate", run=hangs_once, start_timeout_s=0.2)
    async with running(tmp_path, step) as supervisor:
        await ready(supervisor)
        assert supervisor.states["migrate"].restarts == 1


async def test_whatever_does_not_run_is_stopped_too(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause_s=3600.0, last_pause_s=3600.0, max_exits=2)
    dead = child(tmp_path, "dead", "import sys; sys.exit(3)", health=_never)
    waits = child(tmp_path, "waits", after=("dead",))
    hung = StepSpec(name="hung", run=asyncio.Event().wait, after=())
    async with running(tmp_path, dead, waits, hung, policy=policy) as supervisor:
        await eventually(lambda: supervisor.states["dead"].phase is Phase.BACKING_OFF)
        assert supervisor.states["waits"].phase is Phase.WAITING
        assert supervisor.states["hung"].phase is Phase.STARTING
    assert {state.phase for state in supervisor.states.values()} == {Phase.STOPPED}
    assert (read_state(supervisor.state_path) or {})["phase"] == "stopped"


async def test_what_ignores_the_stop_signal_is_killed_with_its_own_children(
    tmp_path: Path,
) -> None:
    program = textwrap.dedent("""
        import os, signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        with open("inner.partial", "w") as file: file.write(str(inner.pid))
        os.rename("inner.partial", "inner")
        signal.pause()
    """)
    inner = tmp_path / "inner"
    stubborn = child(tmp_path, "stubborn", program, stop_grace_s=0.2)
    async with running(tmp_path, stubborn) as supervisor:
        await eventually(inner.exists)
        outer = pid_of(supervisor, "stubborn")
    assert outer is not None
    assert identity_of(outer) is None
    assert identity_of(int(inner.read_text())) is None


async def test_the_state_file_names_every_process(tmp_path: Path) -> None:
    spec = child(tmp_path, "service", urls={"scheduler_url": "http://127.0.0.1:1"})
    info = {"kubeconfig": "/k"}
    async with running(tmp_path, spec, info=info) as supervisor:
        await ready(supervisor)
        await eventually(lambda: (read_state(supervisor.state_path) or {}).get("phase") == "ready")
        state = read_state(supervisor.state_path)
        assert state is not None
        assert state["kubeconfig"] == "/k"
        assert state["supervisor"]["pid"] == os.getpid()
        assert state["services"]["service"]["pid"] == pid_of(supervisor, "service")
        assert state["services"]["service"]["urls"] == {"scheduler_url": "http://127.0.0.1:1"}
    state = read_state(supervisor.state_path)
    assert state is not None
    assert state["phase"] == "stopped"
    assert running_supervisor(supervisor.state_path) is None


DETACHED = """
import asyncio, sys
from pathlib import Path
from hamilocal.supervisor.plan import ChildSpec
from hamilocal.supervisor.supervisor import Supervisor
folder = Path(sys.argv[1])
spec = ChildSpec(name="service", argv=(sys.executable, "-c", "import signal; signal.pause()"),
                 cwd=folder)
asyncio.run(Supervisor([spec], folder=folder / ".hami").run())
"""


async def _start_detached(tmp_path: Path) -> tuple[int, int]:
    """Start a supervisor that outlives us; its pid and its child's."""
    program = tmp_path / "detached.py"
    program.write_text(DETACHED)
    pid = detach(
        [sys.executable, str(program), str(tmp_path)], log_path=tmp_path / "supervisor.log"
    )
    state_path = tmp_path / ".hami" / "state.json"
    await eventually(lambda: (read_state(state_path) or {}).get("phase") == "ready")
    state = read_state(state_path)
    assert state is not None
    assert state["supervisor"]["pid"] == pid
    return pid, state["services"]["service"]["pid"]


async def test_a_detached_supervisor_is_stopped_by_its_state_file(tmp_path: Path) -> None:
    pid, service = await _start_detached(tmp_path)
    state_path = tmp_path / ".hami" / "state.json"
    with pytest.raises(SupervisorError, match=f"already runs .process {pid}."):
        await Supervisor([], folder=tmp_path / ".hami").run()
    assert await asyncio.to_thread(stop_running, state_path)
    os.waitpid(pid, 0)
    assert identity_of(service) is None
    assert not await asyncio.to_thread(stop_running, state_path)


async def test_after_a_killed_supervisor_the_next_one_ends_the_children_it_left(
    tmp_path: Path,
) -> None:
    pid, service = await _start_detached(tmp_path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert identity_of(service) is not None
    async with running(tmp_path, child(tmp_path, "service")) as supervisor:
        await ready(supervisor)
        assert identity_of(service) is None
        assert pid_of(supervisor, "service") != service


async def test_a_process_that_merely_has_a_noted_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as foreign:
        state_path = tmp_path / ".hami" / "state.json"
        state_path.parent.mkdir()
        real = identity_of(foreign.pid)
        assert real is not None
        entry = {"pid": real.pid, "start_ticks": real.start_ticks - 1, "boot_id": real.boot_id}
        state_path.write_text(json.dumps({"services": {"service": entry}}))
        async with running(tmp_path, child(tmp_path, "service")) as supervisor:
            await ready(supervisor)
        assert foreign.poll() is None
        foreign.kill()


async def test_what_a_killed_supervisor_had_not_yet_noted_is_found_by_its_marker(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ".hami"
    environment = os.environ | {MARKER: str(folder)}
    with subprocess.Popen([sys.executable, "-c", SLEEPER], env=environment) as orphan:
        await eventually(lambda: MARKER in Path(f"/proc/{orphan.pid}/environ").read_text())
        async with running(tmp_path, child(tmp_path, "service")) as supervisor:
            await ready(supervisor)
            assert orphan.wait(5) == -signal.SIGTERM


def test_a_long_log_is_renamed(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_bytes(b"x" * (5 * 1024 * 1024 + 1))
    rotate(log)
    assert not log.exists()
    assert (tmp_path / "service.log.1").stat().st_size == 5 * 1024 * 1024 + 1
    log.write_text("short")
    rotate(log)
    assert log.exists()


def test_a_child_after_something_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SupervisorError, match="service comes after postgres, which is not listed"):
        Supervisor([child(tmp_path, "service", after=("postgres",))], folder=tmp_path)


async def _never() -> None:
    raise NotReadyError("never")


def test_the_clock_of_process_starts_is_the_kernels() -> None:
    me = identity_of(os.getpid())
    assert me is not None
    assert me.start_ticks / os.sysconf("SC_CLK_TCK") < time.clock_gettime(time.CLOCK_BOOTTIME)
