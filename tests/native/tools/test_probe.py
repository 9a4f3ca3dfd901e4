"""vgpu-probe: what the demo's workload prints and how it ends."""

import json
import signal
import subprocess
from typing import Any

from tests.native.machine import CARDS, FAKEGPU, MIB, Container, Machine
from tests.waiting import PATIENCE_S

PROBE = FAKEGPU / "vgpu-probe"


def run(env: dict[str, str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [PROBE, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_it_takes_its_slice_and_is_refused_one_byte_more(
    container: Container, machine: Machine
) -> None:
    container.limit(300 * MIB)
    status, events = run(container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0]), "--once")
    assert status == 0
    assert events[0] == {
        "event": "device",
        "index": 0,
        "uuid": CARDS[0],
        "name": "NVIDIA A100-SXM4-80GB",
        "total_bytes": 300 * MIB,
        "free_bytes": 300 * MIB,
        "nvml_total_bytes": 300 * MIB,
        "nvml_free_bytes": 300 * MIB,
    }
    assert events[1:] == [
        {"event": "allocated", "index": 0, "bytes": 300 * MIB},
        {"event": "refused", "index": 0, "bytes": 1, "error": "CUDA_ERROR_OUT_OF_MEMORY"},
        {"event": "launched", "kernels": 64},
    ]
    assert machine.peak() == 300 * MIB
    assert machine.used_bytes() == 0


def test_it_reports_a_limit_that_does_not_hold(container: Container) -> None:
    container.limit(300 * MIB)
    env = container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    holder = container.machine.start(env)
    holder.call("open_device")
    status, events = run(env, "--once", "--bytes", str(301 * MIB), "--no-launch")
    assert status == 0
    assert events[-1] == {
        "event": "refused",
        "index": 0,
        "bytes": 301 * MIB,
        "error": "CUDA_ERROR_OUT_OF_MEMORY",
    }
    status, events = run(env, "--once", "--bytes", str(100 * MIB), "--no-launch")
    assert (status, events[-1]) == (0, {"event": "allocated", "index": 0, "bytes": 100 * MIB})


def test_it_runs_until_it_is_stopped(container: Container, machine: Machine) -> None:
    container.limit(300 * MIB)
    with subprocess.Popen(
        [PROBE],
        env=container.env(FAKEGPU_VISIBLE_DEVICES=CARDS[0]),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if json.loads(line)["event"] == "running":
                break
        assert machine.used_bytes() == 300 * MIB
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert machine.used_bytes() == 0


def test_without_a_driver_it_prints_what_is_missing(container: Container) -> None:
    status, events = run(container.env(LD_LIBRARY_PATH="/nowhere"), "--once")
    assert status == 1
    assert events == [
        {"event": "error", "call": "dlopen", "error": "libcuda.so.1 cannot be loaded"}
    ]


def test_a_wrong_option_is_refused(machine: Machine) -> None:
    assert run(machine.env(), "--bytes", "many")[0] == 2
