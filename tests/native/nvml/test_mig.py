"""MIG of the stand-in driver, through the real pynvml: profiles, instances made and destroyed."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.native.machine import FAKEGPU, ROOT, Machine
from tests.waiting import PATIENCE_S


@pytest.fixture
def machine(machine: Machine) -> Machine:
    for device in machine.settings["devices"]:
        device |= {"memory_mib": 81920, "mig": []}
    machine.write()
    return machine


def call(machine: Machine, *calls: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.native.nvml.mig_calls", ",".join(calls)],
        cwd=ROOT,
        env=machine.env(),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return list(json.loads(done.stdout))


def control(machine: Machine, *arguments: str) -> str:
    done = subprocess.run(
        [FAKEGPU / "fakegpu-ctl", *arguments],
        env=machine.env(),
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.stdout


def test_a_card_with_seven_slices_has_nvidias_profiles_and_placements(machine: Machine) -> None:
    assert call(machine, "profiles 0") == [
        [
            ["MIG 1g.10gb", 7, 9728, [0, 1, 2, 3, 4, 5, 6]],
            ["MIG 2g.20gb", 3, 19968, [0, 2, 4]],
            ["MIG 3g.40gb", 2, 40448, [0, 4]],
            ["MIG 4g.40gb", 1, 40448, [0]],
            ["MIG 7g.80gb", 1, 81408, [0]],
            ["MIG 1g.20gb", 4, 19968, [0, 2, 4, 6]],
        ]
    ]


def test_an_instance_is_made_where_it_is_wanted_and_all_processes_see_it(machine: Machine) -> None:
    [[three, _, uuid]] = call(machine, "make 0 2 4")

    assert call(machine, "devices 0", "devices 1") == [[[uuid, three, 40448]], []]
    assert uuid.startswith("MIG-")
    assert call(machine, "make 0 0 4", "make 0 1 3", "make 0 4 0") == [
        "NVMLError_InsufficientResources",
        "NVMLError_InvalidArgument",
        "NVMLError_InsufficientResources",
    ]
    assert call(machine, f"destroy 0 {three}", "devices 0", f"destroy 0 {three}") == [
        None,
        [],
        "NVMLError_NotFound",
    ]


def test_one_made_again_has_another_name(machine: Machine) -> None:
    [[number, _, first], _, [again, _, second]] = call(
        machine, "make 0 0 6", "destroy 0 7", "make 0 0 6"
    )
    assert (number, again) == (7, 7)
    assert first != second


def test_an_instance_that_a_program_uses_is_not_destroyed(machine: Machine) -> None:
    [[number, _, _]] = call(machine, "make 1 1 2")
    control(machine, "mig-busy", "1", str(number))
    assert call(machine, f"destroy 1 {number}") == ["NVMLError_InUse"]
    control(machine, "mig-idle", "1", str(number))
    assert call(machine, f"destroy 1 {number}") == [None]


def test_the_mode_changes_only_while_nobody_is_on_the_card(machine: Machine) -> None:
    in_use = 19
    answers = call(machine, "make 0 4 0", "mode 0 0", "destroy 0 0", "mode 0 0", "make 0 4 0")
    assert answers[1:] == [[in_use, 1, 0], None, [0, 0, 0], "NVMLError_NotSupported"]


def test_the_node_is_shown_with_its_instances(machine: Machine) -> None:
    [[_, _, uuid]] = call(machine, "make 0 1 2")
    [card, other] = json.loads(control(machine, "show"))["cards"]
    assert (card["mig_mode"], other["mig"]) == (True, [])
    assert card["mig"] == [
        {
            "gpu_instance": 3,
            "slices": 2,
            "start": 2,
            "size": 2,
            "busy": False,
            "devices": [uuid],
        }
    ]


def test_calls_can_be_made_to_fail(machine: Machine) -> None:
    machine.settings["faults"] = [{"call": "nvmlGpuInstanceCreateComputeInstance", "result": 999}]
    machine.write()
    assert call(machine, "make 0 0 0", "destroy 0 7", "make 0 0 0")[:2] == [
        "NVMLError_Unknown",
        None,
    ]
