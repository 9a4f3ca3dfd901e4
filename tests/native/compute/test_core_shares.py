"""The core limits of the unmodified library: preloaded programs on the stand-in driver.

Real time on a machine that may be busy: a program may get less than its share in any interval, and
never gets more. It has its share as soon as other processes leave it a core. Time is that of the
card. test_core_limits.py has the exact figures.
"""

import json
import operator
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.driver_program import Program
from tests.native.machine import CARDS, FAKEGPU, Container, Machine
from tests.waiting import PATIENCE_S, wait

LOAD = FAKEGPU / "vgpu-load"
MORE_POINTS = 5
LESS_POINTS = 15
"""Points that threads which should launch lose on a loaded machine."""
MEASURED_S = 2
SETTLE_S = 2


@dataclass
class Load:
    """A program that keeps the first card busy."""

    process: subprocess.Popen[bytes]
    machine: Machine


def start(
    stack: ExitStack, container: Container, *options: str, env: Mapping[str, str] | None = None
) -> Load:
    process = stack.enter_context(
        subprocess.Popen(
            [LOAD, "--seconds", "1000", *options],
            env=container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0], **(env or {})),
        )
    )
    stack.callback(process.kill)
    return Load(process, container.machine)


def computed_ns(loads: Sequence[Load]) -> tuple[int, list[int]]:
    """The card's clock, and how long it has computed for each until then."""
    shown = loads[0].machine.ctl("show")
    by_pid = {p["pid"]: p["computed_ns"][0] for p in shown["processes"]}
    return shown["cards"][0]["now_ns"], [by_pid.get(load.process.pid, 0) for load in loads]


def shares(loads: Sequence[Load], settle_s: float = SETTLE_S) -> list[float]:
    """Percent of the card that each had, after it had time to settle."""

    def computing() -> bool:
        assert all(load.process.poll() is None for load in loads)
        return all(computed_ns(loads)[1])

    wait(computing, "the programs to compute")
    time.sleep(settle_s)
    begin, before = computed_ns(loads)
    time.sleep(MEASURED_S)
    end, after = computed_ns(loads)
    return [(b - a) / (end - begin) * 100 for a, b in zip(before, after, strict=True)]


def assert_shares(look: Callable[[], list[float]], *limits: float) -> None:
    """Assert that no tenant ever exceeds its limit, and that all reach theirs at one time."""
    seen: list[list[float]] = []

    def theirs() -> bool:
        seen.append(look())
        assert_at_most(seen[-1], *limits)
        return all(got >= limit - LESS_POINTS for got, limit in zip(seen[-1], limits, strict=True))

    wait(theirs, f"shares of {limits}", why=lambda: f"had {seen}")


def assert_at_most(got: Sequence[float], *limits: float) -> None:
    assert all(one <= limit + MORE_POINTS for one, limit in zip(got, limits, strict=True)), got


def another(machine: Machine, name: str, cores: int) -> Container:
    (machine.folder / name).mkdir()
    container = Container(machine, machine.folder / name)
    container.limit(1 << 30, cores=cores)
    return container


@pytest.mark.parametrize(
    "options",
    [
        ("--blocks", "216"),
        ("--blocks", "216", "--graph", "20"),
        ("--blocks", "4320", "--cooperative"),
    ],
    ids=["kernels of 50 us", "graphs of 1 ms", "cooperative kernels of 1 ms"],
)
def test_two_tenants_get_30_and_70(machine: Machine, options: tuple[str, ...]) -> None:
    with ExitStack() as stack:
        loads = [
            start(stack, another(machine, f"limit-{limit}", limit), *options) for limit in (30, 70)
        ]
        assert_shares(lambda: shares(loads), 30, 70)


def test_processes_of_a_container_share_its_limit_and_a_new_limit_reaches_them(
    machine: Machine,
) -> None:
    container = another(machine, "tenant", 60)
    with ExitStack() as stack:
        loads = [start(stack, container) for _ in range(2)]
        assert_shares(lambda: [sum(shares(loads))], 60)
        wait(lambda: abs(operator.sub(*shares(loads, settle_s=0))) <= 10, "equal shares")
        container.limit(1 << 30, cores=20)
        assert_shares(lambda: [sum(shares(loads))], 20)


def limits(container: Container, head: str, cores: int = 20) -> None:
    container.limits(
        f"hami-limits 1\n{head}device {CARDS[0]} memory_bytes 1073741824 core_percent {cores}\n"
    )


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("policy default\nutilization_switch 0\n", 100),
        ("policy disable\n", 100),
        ("policy force\nutilization_switch 0\n", 20),
    ],
    ids=["default and switched off", "disable", "force and switched off"],
)
def test_the_policy_decides(machine: Machine, head: str, expected: int) -> None:
    container = another(machine, "tenant", 20)
    limits(container, head)
    with ExitStack() as stack:
        load = start(stack, container)
        assert_shares(lambda: shares([load], settle_s=1), expected)


def test_a_tenant_that_writes_into_its_region_gains_nothing(machine: Machine) -> None:
    container = another(machine, "tenant", 20)
    with ExitStack() as stack:
        load = start(stack, container)
        shares([load], settle_s=0)
        with container.region.open("r+b") as region:
            region.seek(1728)  # sm_limit[0]
            region.write(struct.pack("<Q", 100))
            region.seek(2008900)  # utilization_switch
            region.write(struct.pack("<i", 0))
        assert_shares(lambda: shares([load]), 20)


def test_a_lower_limit_in_the_region_holds(machine: Machine) -> None:
    container = another(machine, "tenant", 80)
    with ExitStack() as stack:
        load = start(stack, container)
        shares([load], settle_s=0)
        with container.region.open("r+b") as region:
            region.seek(1728)
            region.write(struct.pack("<Q", 20))
        assert_shares(lambda: shares([load]), 20)


def test_a_tenant_without_a_limit_waits_while_another_has_precedence(machine: Machine) -> None:
    container = another(machine, "tenant", 0)
    with ExitStack() as stack:
        load = start(stack, container)
        wait(lambda: shares([load], settle_s=0)[0] > 50, "the program to have the card")
        limits(container, "priority_block 1\n", cores=0)
        wait(lambda: shares([load], settle_s=1) == [0], "the program to wait")
        limits(container, "priority_block 0\n", cores=0)
        wait(lambda: shares([load], settle_s=0)[0] > 50, "the program to have the card again")


@pytest.mark.parametrize("ahead_s", [-60, 2], ids=["passed", "passes"])
def test_a_block_ends_by_itself_when_nobody_renews_it(container: Container, ahead_s: int) -> None:
    """Each of the launches would wait for half a minute, and all of them beyond any patience."""
    limits(container, f"priority_block 1 {int(time.time()) + ahead_s}\n", cores=0)
    client = container.start(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    assert client.call("open_device") == {"result": 0}
    client.send("launch", kernels=20)
    wait(lambda: client.has_answer, "the launches to be made")
    assert client.receive() == {"result": 0}


def block_in_region(container: Container) -> None:
    with container.region.open("r+b") as region:
        region.seek(2008904)  # recent_kernel
        region.write(struct.pack("<i", -1))


def test_a_monitor_of_hami_holds_launches_back_through_the_region(machine: Machine) -> None:
    container = Container(machine, machine.folder)
    with ExitStack() as stack:
        load = start(stack, container, env={"CUDA_DEVICE_MEMORY_LIMIT": "1g"})
        shares([load], settle_s=0)
        block_in_region(container)
        wait(lambda: shares([load], settle_s=1) == [0], "the program to wait")


def test_beside_a_limits_file_the_region_holds_nothing_back(machine: Machine) -> None:
    """An agent that has ended leaves its block for HAMi's library there."""
    container = another(machine, "tenant", 0)
    with ExitStack() as stack:
        load = start(stack, container)
        shares([load], settle_s=0)
        block_in_region(container)
        wait(lambda: shares([load], settle_s=1)[0] > 50, "the program to have the card")


@pytest.mark.parametrize("known", [True, False], ids=["node writes pids", "nobody writes pids"])
def test_a_driver_that_shows_containers_the_pids_of_the_host(machine: Machine, known: bool) -> None:
    machine.settings["pid_offset"] = 100_000
    machine.write()
    containers = [another(machine, f"limit-{limit}", limit) for limit in (30, 65)]
    with ExitStack() as stack:
        loads = []
        for container in containers:
            load = start(stack, container)
            pid = load.process.pid
            if known:
                (container.folder / "hami" / "pids").write_text(f"{pid} {pid + 100_000}\n")
            loads.append(load)
        # No tenant exceeds its limit; without NVML's samples one beside another may get less.
        assert_at_most(shares(loads), 30, 65)
        if known:
            assert_shares(lambda: shares(loads)[:1], 30)


def test_a_recording_stream_is_not_disturbed(container: Container) -> None:
    # The stand-in driver refuses event queries of a thread that has not declared itself relaxed
    # while any stream records: the program's graphs fail to build if the library asks carelessly.
    container.limit(1 << 30, cores=10)
    done = subprocess.run(
        [LOAD, "--seconds", "1", "--graph", "2000", "--blocks", "1"],
        env=container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0]),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["launches"] > 0


def test_a_program_that_forks_keeps_to_its_limit(container: Container) -> None:
    container.limit(1 << 30, cores=50)
    client = container.start(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch", kernels=100, blocks=216) == {"result": 0}
    child = client.call("fork_and_alloc", bytes=1000)
    assert child["result"] == 0
    assert client.call("launch", kernels=100, blocks=216) == {"result": 0}


def test_a_load_without_a_driver_prints_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [LOAD], env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "libcuda.so.1 is missing" in done.stderr


def test_nvml_is_asked_again_after_a_program_has_shut_it_down(container: Container) -> None:
    container.limit(1 << 30, cores=50)
    body = """
import threading

nvml = ctypes.CDLL("libnvidia-ml.so.1")
function = kernel()


def launches():
    ok(cuda.cuCtxSetCurrent(context))
    while True:
        ok(cuda.cuLaunchKernel(function, 216, 1, 1, 1024, 1, 1, 0, None, None, None))


threading.Thread(target=launches, daemon=True).start()
for line in sys.stdin:
    for _ in range(3):
        nvml.nvmlShutdown()
    show("shut down")
"""
    env = container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    with Program(container.machine, body, env=env) as program:
        wait(lambda: shown_percent(container) > 0, "a sample of NVML")
        program.go_on()
        assert program.line() == "shut down"
        with container.region.open("r+b") as region:
            region.seek(SHOWN_AT)
            region.write(bytes(8))
        wait(lambda: shown_percent(container) > 0, "another sample")


CLOCK = """
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && access(getenv("SET_BACK"), F_OK) != 0) now->tv_sec += 3600;
    return result;
}
"""
"""A clock that is an hour ahead until a file is there."""


def test_a_wall_clock_that_is_set_back_does_not_end_the_samples(
    container: Container, compile_c: Callable[..., Path]
) -> None:
    container.limit(1 << 30, cores=50)
    container.machine.ctl("show")  # the stand-in's stamps use the first process's clock
    clock = compile_c(CLOCK, "-w", "-D_GNU_SOURCE", "-shared", "-fPIC", name="clock.so")
    set_back = container.folder / "set-back"
    env = {"LD_PRELOAD": f"{clock}:{container.env()['LD_PRELOAD']}", "SET_BACK": str(set_back)}
    with ExitStack() as stack:
        load = start(stack, container, env=env)
        shares([load], settle_s=0)
        assert shown_percent(container) == 0
        set_back.touch()
        wait(lambda: shown_percent(container) > 0, "a sample of NVML")


SHOWN_AT = 1856 + 1160 + 16
"""slots[0].util[0].sm_percent"""


def shown_percent(container: Container) -> int:
    """The last sample of the first process on the first card, as a monitor reads it."""
    if not container.region.exists():
        return 0
    content = container.region.read_bytes()
    return int(struct.unpack_from("<Q", content, SHOWN_AT)[0]) if content else 0
