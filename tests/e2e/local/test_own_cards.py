"""`hamictl up --own-cards`: the cards of this machine, by its own driver.

Here the driver is the stand-in, whose configuration the agent's environment and the pods name; on a
machine with a card no configuration is needed.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json
from hamilocal.system.layout import project

from tests.e2e.conftest import running_system
from tests.e2e.system import MIB, System, a_pod, slice_of

CARDS = tuple(f"GPU-7c3ad3a4-0000-0000-0000-00000000000{number}" for number in (1, 2))
CARD_MIB = 24_576


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine's driver, with two cards; its configuration."""
    folder = tmp_path_factory.mktemp("machine")
    folder.chmod(0o755)
    card = {"uuid": CARDS[0], "name": "NVIDIA L4", "memory_mib": CARD_MIB}
    (folder / "cards.json").write_text(
        json.dumps({"state": str(folder / "state"), "devices": [card, card | {"uuid": CARDS[1]}]})
    )
    return folder / "cards.json"


@pytest.fixture(scope="module")
def own(machine: Path) -> Iterator[System]:
    flags = ("--own-cards", "--driver-folder", str(project().fakegpu))
    environment = {"FAKEGPU_CONFIG": str(machine)}
    with running_system("emulated", *flags, environment=environment) as system:
        yield system


def with_driver(pod: Json, machine: Path) -> Json:
    for container in pod["spec"]["containers"]:
        container["env"] = [{"name": "FAKEGPU_CONFIG", "value": str(machine)}]
    return pod


def test_the_machines_cards_are_those_of_its_driver(own: System) -> None:
    rows = own.sql("SELECT uuid, node, memory_mib FROM devices WHERE present ORDER BY uuid")

    assert rows.splitlines() == [f"{uuid}|node-0|{CARD_MIB}" for uuid in CARDS]


def test_a_pod_gets_its_slice_of_one_of_them(own: System, machine: Path) -> None:
    pod = with_driver(a_pod("sliced", slice_of(4096, 30)), machine)
    [running] = own.run(pod)

    lines = {line["event"]: line for line in own.wait_for_log(running, "cuda", "launched")}

    assert lines["device"]["total_bytes"] == 4096 * MIB
    assert lines["device"]["uuid"] in CARDS
    assert lines["refused"]["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    own.check_invariants()


def test_a_pod_without_cards_is_shown_none(own: System, machine: Path) -> None:
    pod = with_driver(a_pod("none", {}, command=("vgpu-probe", "--once")), machine)
    pod["spec"]["restartPolicy"] = "Never"
    assert own.create(pod).status_code == 201

    failed = own.wait_for_phase("none", "Failed")

    assert all(line["event"] != "allocated" for line in own.log(failed, "cuda"))
