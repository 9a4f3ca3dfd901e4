"""NVML's figures of processes as drivers give them: means, and hit or miss on a shared card."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

from tests.native.machine import CARDS, FAKEGPU, MIB, Client, Machine, open_context
from tests.waiting import PATIENCE_S, wait

SAMPLE_US = 200_000
SAMPLES = 12
LOAD = FAKEGPU / "vgpu-load"


def configure_driver(machine: Machine, **settings: object) -> None:
    machine.settings |= {"nvml_sample_ms": SAMPLE_US // 1000, **settings}
    machine.write()


def load(machine: Machine, *options: str) -> subprocess.Popen[bytes]:
    env = machine.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    return subprocess.Popen([LOAD, *options], env=env, stdout=subprocess.DEVNULL)


def usage(node: Client, since_us: int) -> dict[int, tuple[int, int]]:
    """Return each process's percentage and the end of its newest sample."""
    found = node.nvml("nvmlDeviceGetProcessUtilization", 0, since_us)
    if isinstance(found, dict):
        # The second: a process has come between the binding's questions for their number and them.
        assert found["error"] in ("NVMLError_NotFound", "NVMLError_InsufficientSize")
        return {}
    return {one["pid"]: (one["smUtil"], one["timeStamp"]) for one in found}


def test_a_figure_is_the_mean_since_the_sample_that_was_asked_with(machine: Machine) -> None:
    configure_driver(machine)
    node = machine.start(machine.env())
    idle_us = int(time.time() * 1e6) - 10 * SAMPLE_US
    program = load(machine, "--seconds", "1000", "--blocks", "21600")

    def newest_alone() -> int:
        _, end_us = usage(node, idle_us).get(program.pid, (0, 0))
        return usage(node, end_us - 1).get(program.pid, (0, 0))[0] if end_us else 0

    try:
        wait(lambda: newest_alone() > 90, "a sample in which the program always computed")
        # Ten samples before the program count too.
        assert 0 < usage(node, idle_us)[program.pid][0] < 90
    finally:
        program.kill()
        program.wait(PATIENCE_S)


def test_who_asks_with_the_newest_stamp_is_answered_that_there_is_none(machine: Machine) -> None:
    configure_driver(machine)
    node = machine.start(machine.env())
    assert usage(node, int(time.time() * 1e6)) == {}


def both_compute(machine: Machine) -> Iterator[dict[int, int]]:
    """Yield each sample of the card while two programs always compute."""
    node = machine.start(machine.env())
    programs = [load(machine, "--seconds", "1000", "--blocks", "216") for _ in range(2)]
    seen_us, deadline_s = 0, time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline_s:
            if found := usage(node, seen_us):
                seen_us = max(end_us for _, end_us in found.values())
                yield {pid: busy for pid, (busy, end_us) in found.items() if end_us == seen_us}
    finally:
        for program in programs:
            program.kill()
            program.wait(PATIENCE_S)


def test_a_sample_of_a_shared_card_counts_for_both_programs(machine: Machine) -> None:
    configure_driver(machine)

    with closing(both_compute(machine)) as samples:
        assert any(len(sample) == 2 for sample in samples)


def test_whole_samples_count_for_one_of_the_programs_that_ran_in_them(machine: Machine) -> None:
    configure_driver(machine, nvml_whole_samples=True)
    seen: list[dict[int, int]] = []

    with closing(both_compute(machine)) as samples:
        for sample in samples:
            assert len(sample) == 1, sample
            seen.append(sample)
            if len(seen) >= SAMPLES and len({pid for one in seen for pid in one}) == 2:
                break

    assert len({pid for one in seen for pid in one}) == 2, seen


def test_lists_of_processes_with_a_version_show_the_same_processes(machine: Machine) -> None:
    node = machine.start(machine.env())
    tenant = open_context(machine.start(machine.env()))
    details, busy = "nvmlDeviceGetRunningProcessDetailList", "nvmlDeviceGetProcessesUtilizationInfo"
    version, compute, graphics = 0x1000018, 0, 1
    tenant.alloc(30 * MIB)
    (process,) = node.nvml(details, 0, version, compute)
    assert (process["pid"], process["usedGpuMemory"]) == (tenant.pid, 30 * MIB)
    assert node.nvml(details, 0, version, graphics) == []
    assert node.nvml(details, 0, 1, compute) == {"error": "NVMLError_ArgumentVersionMismatch"}
    assert node.nvml(busy, 0, 0) == {"error": "NVMLError_NotFound"}
    tenant.send("launch", kernels=20_000, blocks=216 * 100)  # minutes of work

    def busy_pids() -> list[int]:
        found = node.nvml(busy, 0, 0)
        return [one["pid"] for one in found if one["smUtil"] > 0] if isinstance(found, list) else []

    # The mean of all kept samples: at first, most are from before the process.
    assert wait(busy_pids, "a sample of the process") == [tenant.pid]
