"""Queries of monitoring tools to NVML, by family, on the stand-in driver through pynvml."""

import subprocess
from typing import Any

import pytest

from tests.native.machine import CARDS, FAKEGPU, Client, Machine, open_context
from tests.waiting import wait

NOT_SUPPORTED = {"error": "NVMLError_NotSupported"}
INVALID = {"error": "NVMLError_InvalidArgument"}
NOT_SUPPORTED_CODE = 3  # nvmlReturn_t
LINKS = 2


@pytest.fixture
def node(machine: Machine) -> Client:
    """A program of the node, on two cards; the first has two links to the second."""
    machine.settings["devices"][0] |= {"nvlinks": [1] * LINKS, "pci_bus_id": "00000000:4E:00.0"}
    machine.write()
    return machine.start(machine.env())


def keep_busy(client: Client) -> None:
    """Minutes of work: 216 blocks of 1024 threads fill 108 SMs x 2048 threads for 50 us."""
    client.send("launch", kernels=20_000, blocks=216 * 100)


def test_ecc_errors_are_counted_and_can_be_set(machine: Machine, node: Client) -> None:
    def total(kind: int, lifetime: int) -> Any:
        return node.nvml("nvmlDeviceGetTotalEccErrors", 0, kind, lifetime)

    assert [total(kind, lifetime) for kind in (0, 1) for lifetime in (0, 1)] == [0, 0, 0, 0]
    machine.ctl("ecc", "0")
    machine.ctl("set", "0", "ecc_corrected", "12")
    assert [total(kind, lifetime) for kind in (0, 1) for lifetime in (0, 1)] == [12, 0, 1, 1]
    assert total(2, 0) == INVALID
    assert node.nvml("nvmlDeviceGetTotalEccErrors", 1, 1, 0) == 0
    machine.ctl("set", "0", "ecc_corrected", "unknown")
    assert total(0, 0) == NOT_SUPPORTED


ENGINES = {
    "nvmlDeviceGetEncoderUtilization": "encoder_percent",
    "nvmlDeviceGetDecoderUtilization": "decoder_percent",
}


@pytest.mark.parametrize(("function", "value"), ENGINES.items())
def test_engines_are_busy_as_they_are_set(
    machine: Machine, node: Client, function: str, value: str
) -> None:
    assert node.nvml(function, 0) == NOT_SUPPORTED
    machine.ctl("set", "0", value, "42")
    assert node.nvml(function, 0) == [42, 167000]
    assert node.nvml(function, 1) == NOT_SUPPORTED


def test_power_and_temperature_are_the_models_or_what_is_set(
    machine: Machine, node: Client
) -> None:
    idle_mw, limit_mw = 60_000, 400_000
    assert node.nvml("nvmlDeviceGetPowerUsage", 0) == idle_mw
    assert node.nvml("nvmlDeviceGetPowerManagementLimit", 0) == limit_mw
    assert node.nvml("nvmlDeviceGetEnforcedPowerLimit", 0) == limit_mw
    machine.ctl("set", "0", "power_mw", "250500")
    machine.ctl("set", "0", "temperature_c", "91")
    assert node.nvml("nvmlDeviceGetPowerUsage", 0) == 250_500
    assert node.nvml("nvmlDeviceGetTemperature", 0, 0) == 91
    assert node.nvml("nvmlDeviceGetTemperatureV", 0, 0) == 91


def test_clocks_follow_the_load(machine: Machine, node: Client) -> None:
    graphics = 0
    assert node.nvml("nvmlDeviceGetMaxClockInfo", 0, graphics) == 1410
    assert node.nvml("nvmlDeviceGetClockInfo", 0, graphics) == 210
    keep_busy(open_context(machine.start(machine.env())))
    wait(lambda: node.nvml("nvmlDeviceGetClockInfo", 0, graphics) == 1410, "a busy sample")
    assert node.nvml("nvmlDeviceGetClockInfo", 0, 9) == INVALID


def test_the_bus_has_traffic_when_it_is_set(machine: Machine, node: Client) -> None:
    sent, received = 0, 1
    throughput = "nvmlDeviceGetPcieThroughput"
    assert node.nvml(throughput, 0, sent) == NOT_SUPPORTED
    machine.ctl("set", "0", "pcie_tx_kib_per_s", "1048576")
    machine.ctl("set", "0", "pcie_rx_kib_per_s", "2048")
    assert [node.nvml(throughput, 0, each) for each in (sent, received)] == [1_048_576, 2048]
    assert node.nvml(throughput, 0, 2) == INVALID


def test_a_card_has_a_fan_when_its_speed_is_set(machine: Machine, node: Client) -> None:
    assert node.nvml("nvmlDeviceGetFanSpeed", 0) == NOT_SUPPORTED
    machine.ctl("set", "0", "fan_percent", "55")
    assert node.nvml("nvmlDeviceGetFanSpeed", 0) == 55


def test_links_lead_to_cards(node: Client) -> None:
    kind = "nvmlDeviceGetNvLinkRemoteDeviceType"
    assert [node.nvml(kind, 0, link) for link in range(LINKS)] == [0] * LINKS  # a GPU
    assert node.nvml(kind, 0, LINKS) == NOT_SUPPORTED
    assert node.nvml(kind, 1, 0) == NOT_SUPPORTED


def test_values_are_set_in_the_machines_file_too(machine: Machine) -> None:
    machine.settings["devices"][1]["values"] = {"fan_percent": 4, "ecc_corrected": None}
    machine.write()
    node = machine.start(machine.env())
    assert node.nvml("nvmlDeviceGetFanSpeed", 1) == 4
    assert node.nvml("nvmlDeviceGetTotalEccErrors", 1, 0, 0) == NOT_SUPPORTED


@pytest.mark.parametrize("values", [{"fan": 4}, {"fan_percent": -1}, {"fan_percent": "4"}])
def test_a_wrong_value_in_the_machines_file_is_refused(
    machine: Machine, values: dict[str, Any]
) -> None:
    machine.settings["devices"][0]["values"] = values
    machine.write()
    done = subprocess.run(
        [FAKEGPU / "fakegpu-ctl", "show"],
        env=machine.env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "values" in done.stderr


@pytest.mark.parametrize(
    "wrong", [("no_such_value", "1"), ("fan_percent", "-1"), ("fan_percent", "4x")]
)
def test_a_wrong_value_is_not_set(machine: Machine, wrong: tuple[str, str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        machine.ctl("set", "0", *wrong)


def test_a_lost_card_answers_nothing_of_all_this(machine: Machine, node: Client) -> None:
    machine.ctl("lose", CARDS[1])
    lost = {"error": "NVMLError_GpuIsLost"}
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEncoderUtilization"):
        assert node.nvml(name, 1) == lost


def test_an_instance_of_a_card_has_no_counters_of_its_own(machine: Machine) -> None:
    machine.settings["devices"][0] |= {
        "memory_mib": 81920,
        "mig": [{"uuid": "MIG-11111111-0000-5000-8000-000000000001", "memory_mib": 9728}],
    }
    machine.write()
    node = machine.start(machine.env())
    names = ["nvmlDeviceGetFanSpeed", "nvmlDeviceGetEncoderUtilization"]
    codes = node.call("nvml_instance_codes", index=0, names=names)
    assert codes == dict.fromkeys(names, NOT_SUPPORTED_CODE)
