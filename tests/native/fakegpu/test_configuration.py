"""The stand-in driver as its configuration makes it: order of cards, faults, turns, messages."""

import json
import subprocess
from contextlib import ExitStack
from typing import Any

import pytest

from tests.native.machine import CARDS, FAKEGPU, MIB, Client, Machine
from tests.waiting import PATIENCE_S, wait

OUT_OF_MEMORY = 2


def opened(client: Client) -> Client:
    assert client.call("open_device") == {"result": 0}
    return client


def configured(machine: Machine, **settings: Any) -> Machine:
    machine.settings |= settings
    machine.write()
    return machine


def test_cuda_counts_the_fastest_card_first_and_nvml_by_the_bus(machine: Machine) -> None:
    configured(machine, cuda_order=[1, 0])
    program = opened(machine.start(machine.env()))
    assert program.call("uuid", ordinal=0)["uuid"] == CARDS[1]
    assert program.nvml("nvmlDeviceGetUUID", 0) == CARDS[0]
    by_bus = opened(machine.start(machine.env(CUDA_DEVICE_ORDER="PCI_BUS_ID")))
    assert by_bus.call("uuid", ordinal=0)["uuid"] == CARDS[0]
    second = opened(machine.start(machine.env(CUDA_VISIBLE_DEVICES="1")))
    assert second.call("uuid", ordinal=0)["uuid"] == CARDS[0]


def test_a_call_fails_as_often_as_configured(machine: Machine) -> None:
    fault = {"call": "cuMemAlloc", "result": OUT_OF_MEMORY, "after": 1, "times": 2}
    program = opened(machine.start(configured(machine, faults=[fault]).env()))
    assert [program.alloc(MIB)[0] for _ in range(4)] == [0, OUT_OF_MEMORY, OUT_OF_MEMORY, 0]


def test_nvml_fails_for_good_if_no_number_of_times_is_given(machine: Machine) -> None:
    fault = {"call": "nvmlDeviceGetMemoryInfo", "result": 999, "times": 0}
    node = machine.start(configured(machine, faults=[fault]).env())
    for _ in range(3):
        assert node.nvml("nvmlDeviceGetMemoryInfo", 0) == {"error": "NVMLError_Unknown"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"faults": [{"call": "cuNothing"}]}, "a fault's call is none of those"),
        ({"cuda_order": [0]}, "cuda_order wants to name each device once"),
        ({"nvml_missing_percent": 100}, "nvml_missing_percent 0 to 99"),
        ({"time_slice_us": 0}, "time_slice_us and nvml_sample_ms want to be at least 1"),
    ],
)
def test_a_wrong_configuration_is_reported_in_a_sentence(
    machine: Machine, settings: dict[str, Any], message: str
) -> None:
    configured(machine, **settings)
    done = subprocess.run(
        [FAKEGPU / "vgpu-probe", "--once"],
        env=machine.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr


def load(machine: Machine, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [FAKEGPU / "vgpu-load", *arguments], env=machine.env(), stdout=subprocess.PIPE
    )


def test_two_programs_take_turns_on_a_card(machine: Machine) -> None:
    # Kernels of 5 ms: 108 SMs hold 216 blocks, and 100 times that many take 100 waves of 50 us.
    with ExitStack() as stack:
        for _ in range(2):
            program = stack.enter_context(load(machine, "--seconds", "1000", "--blocks", "21600"))
            stack.callback(program.kill)

        def computed_ns() -> list[int]:
            return [p["computed_ns"][0] for p in machine.ctl("show")["processes"]]

        begun = wait(lambda: (now := computed_ns()) and len(now) == 2 and all(now) and now)

        def took_turns() -> bool:
            one, two = (now - then for now, then in zip(computed_ns(), begun, strict=True))
            return one + two >= 10**9 and one <= 2 * two and two <= 2 * one

        wait(took_turns, "both to have computed about as long", why=lambda: f"{computed_ns()}")


def test_a_program_that_is_alone_has_the_card_to_itself(machine: Machine) -> None:
    program = load(machine, "--seconds", "1", "--blocks", "21600", "--sync-every", "1")
    result = json.loads(program.communicate(timeout=PATIENCE_S)[0])
    assert result["kernel_ms"] == pytest.approx(5.0, abs=0.01)
    # On a busy machine the program itself comes late; the card never works faster.
    assert result["launches"] <= result["seconds"] * 1000 / 5 + 1


def test_where_processes_have_no_utilisation_nvml_reports_so(machine: Machine) -> None:
    configured(machine, nvml_process_utilization=False)
    program = opened(machine.start(machine.env()))
    assert program.nvml("nvmlDeviceGetProcessUtilization", 0, 0) == {
        "error": "NVMLError_NotSupported"
    }
