"""What monitoring tools ask NVML for, family by family, on the stand-in driver through pynvml."""

import re
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.native.driver_calls import DATA, nvml_functions
from tests.native.machine import CARDS, FAKEGPU, ROOT, Client, Machine, opened
from tests.waiting import wait

NOT_SUPPORTED = {"error": "NVMLError_NotSupported"}
INVALID = {"error": "NVMLError_InvalidArgument"}
# nvmlReturn_t
SUCCESS_CODE, INVALID_CODE, NOT_SUPPORTED_CODE, NO_PERMISSION_CODE, LOST_CODE = 0, 2, 3, 4, 15
LINKS = 2


@pytest.fixture
def node(machine: Machine) -> Client:
    """A program of the node, on two cards; the first has two links to the second."""
    machine.settings["devices"][0] |= {"nvlinks": [1] * LINKS, "pci_bus_id": "00000000:4E:00.0"}
    machine.write()
    return machine.start(machine.env())


def fields(client: Client, asked: Sequence[int | list[int]], card: int = 0) -> list[int | None]:
    """The value of each field; None: the card has not got it."""
    answers = client.nvml("nvmlDeviceGetFieldValues", card, asked)
    assert {each["nvmlReturn"] for each in answers} <= {SUCCESS_CODE, NOT_SUPPORTED_CODE}
    return [each["value"] if each["nvmlReturn"] == SUCCESS_CODE else None for each in answers]


def keep_busy(client: Client) -> None:
    """Minutes of work: 216 blocks of 1024 threads fill 108 SMs x 2048 threads for 50 us."""
    client.send("launch", kernels=20_000, blocks=216 * 100)


def refused() -> dict[str, list[str]]:
    table = (ROOT / "native/fakegpu/src/nvml/nvml_refused.def").read_text()
    found: dict[str, list[str]] = {"REFUSED": [], "DENIED": [], "ELSEWHERE": []}
    for kind, name in re.findall(r"^([A-Z]+)\((nvml\w+)\)$", table, re.MULTILINE):
        found[kind].append(name)
    return found


def test_every_function_that_pynvml_knows_of_driver_570_is_there() -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", FAKEGPU / "libnvidia-ml.so.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    exported = set(re.findall(r" T (nvml\w+)", symbols.stdout))
    later = set((DATA / "nvml-later.txt").read_text().splitlines()[1:])
    assert sorted(set(nvml_functions()) - exported - later) == []
    assert sorted(later & exported) == []


def test_what_the_cards_have_not_is_not_supported_and_changes_are_not_permitted(
    machine: Machine, node: Client
) -> None:
    table = refused()
    expected = {
        **dict.fromkeys(table["REFUSED"], NOT_SUPPORTED_CODE),
        **dict.fromkeys(table["DENIED"], NO_PERMISSION_CODE),
        **dict.fromkeys(table["ELSEWHERE"], NOT_SUPPORTED_CODE),
    }
    assert all(table.values())
    assert node.call("nvml_codes", index=0, names=list(expected)) == expected


def test_ecc_errors_are_counted_and_can_be_set(machine: Machine, node: Client) -> None:
    def total(kind: int, lifetime: int) -> Any:
        return node.nvml("nvmlDeviceGetTotalEccErrors", 0, kind, lifetime)

    assert [total(kind, lifetime) for kind in (0, 1) for lifetime in (0, 1)] == [0, 0, 0, 0]
    machine.ctl("ecc", "0")
    machine.ctl("set", "0", "ecc_corrected", "12")
    assert [total(kind, lifetime) for kind in (0, 1) for lifetime in (0, 1)] == [12, 0, 1, 1]
    assert node.nvml("nvmlDeviceGetDetailedEccErrors", 0, 0, 0)["deviceMemory"] == 12
    device_memory, registers = 2, 3
    errors = "nvmlDeviceGetMemoryErrorCounter"
    assert node.nvml(errors, 0, 0, 0, device_memory) == 12
    assert node.nvml(errors, 0, 0, 0, registers) == 0
    assert node.nvml(errors, 0, 0, 0, 99) == INVALID
    assert total(2, 0) == INVALID
    assert node.nvml("nvmlDeviceGetTotalEccErrors", 1, 1, 0) == 0
    assert fields(node, [3, 4, 5, 6, 11]) == [12, 1, 0, 1, 12]
    machine.ctl("set", "0", "ecc_corrected", "unknown")
    assert total(0, 0) == NOT_SUPPORTED
    assert fields(node, [3, 4]) == [None, 1]


def test_remapped_rows_and_retired_pages(machine: Machine, node: Client) -> None:
    assert node.nvml("nvmlDeviceGetRemappedRows", 0) == [0, 0, 0, 0]
    for name, value in (("corrected", 3), ("uncorrected", 1), ("pending", 1), ("failed", 1)):
        machine.ctl("set", "0", f"remapped_rows_{name}", str(value))
    assert node.nvml("nvmlDeviceGetRemappedRows", 0) == [3, 1, 1, 1]
    histogram = node.nvml("nvmlDeviceGetRowRemapperHistogram", 0)
    assert (histogram["max"], histogram["high"], histogram["none"]) == (636, 3, 1)
    assert fields(node, [142, 143, 144, 145]) == [3, 1, 1, 1]
    # A card that remaps rows retires no pages.
    pages = "nvmlDeviceGetRetiredPages"
    assert node.nvml(pages, 0, 1) == NOT_SUPPORTED
    assert node.nvml("nvmlDeviceGetRetiredPagesPendingStatus", 0) == NOT_SUPPORTED
    machine.ctl("set", "0", "retired_pages_uncorrected", "2")
    machine.ctl("set", "0", "retired_pages_pending", "1")
    assert node.nvml(pages, 0, 1) == [0, 4096]
    assert node.nvml("nvmlDeviceGetRetiredPagesPendingStatus", 0) == 1
    assert fields(node, [29, 30, 31]) == [None, 2, 1]


def test_links_have_a_version_capabilities_errors_and_traffic(
    machine: Machine, node: Client
) -> None:
    assert node.nvml("nvmlDeviceGetNvLinkVersion", 0, 0) == 5  # NVML_NVLINK_VERSION_3_1
    assert [node.nvml("nvmlDeviceGetNvLinkCapability", 0, 0, each) for each in range(4)] == [
        1,
        0,
        1,
        0,
    ]
    assert node.nvml("nvmlDeviceGetNvLinkRemoteDeviceType", 0, 1) == 0  # a GPU
    errors = "nvmlDeviceGetNvLinkErrorCounter"
    assert [node.nvml(errors, 0, 0, kind) for kind in range(4)] == [0] * 4
    machine.ctl("set", "0", "nvlink_replay_errors", "5")
    machine.ctl("set", "0", "nvlink_crc_flit_errors", "7")
    assert [node.nvml(errors, 0, 1, kind) for kind in range(4)] == [5, 0, 7, 0]
    assert node.nvml(errors, 0, LINKS, 0) == NOT_SUPPORTED
    assert node.nvml(errors, 0, 18, 0) == INVALID
    assert node.nvml(errors, 1, 0, 0) == NOT_SUPPORTED
    # Link 0 and 1, one that is not there, the sum; how many, how fast.
    assert fields(node, [46, 47, 48, 52, 32, 38]) == [5, 5, None, 10, 7, 14]
    assert fields(node, [91, 90, 84, 86]) == [LINKS, 25781, 25781, None]
    assert fields(node, [[165, 0], [165, LINKS], [164, 1], [161, 1]]) == [1, 0, 25781, 5]
    assert fields(node, [91, 90, 46], card=1) == [0, None, None]
    every_link = 0xFFFFFFFF
    assert fields(node, [[138, 0], [139, every_link]]) == [None, None]
    machine.ctl("set", "0", "nvlink_tx_kib", "1000")
    machine.ctl("set", "0", "nvlink_rx_kib", "400")
    assert fields(node, [[138, 0], [139, every_link]]) == [1000, 800]


def test_a_field_that_no_card_has_is_invalid_and_the_others_are_answered(node: Client) -> None:
    answers = node.nvml("nvmlDeviceGetFieldValues", 0, [91, 9999, 200])
    assert [each["nvmlReturn"] for each in answers] == [
        SUCCESS_CODE,
        INVALID_CODE,
        NOT_SUPPORTED_CODE,
    ]


def test_samples_show_when_the_card_was_busy(machine: Machine, node: Client) -> None:
    tenant = opened(machine.start(machine.env()))
    busy, power, clock, decoder = 1, 0, 5, 4

    def samples(kind: int, since_us: int = 0) -> list[dict[str, int]]:
        value_type, found = node.nvml("nvmlDeviceGetSamples", 0, kind, since_us)
        assert value_type == 1  # unsigned int
        return list(found)

    keep_busy(tenant)
    wait(lambda: any(each["sampleValue"] > 80 for each in samples(busy)), "a busy sample")
    found = samples(busy)
    stamps = [each["timeStamp"] for each in found]
    assert stamps == sorted(stamps)
    assert {later - sooner for sooner, later in pairwise(stamps)} == {167000}
    assert max(each["sampleValue"] for each in samples(power)) > 300_000
    assert max(each["sampleValue"] for each in samples(clock)) == 1410
    assert all(each["timeStamp"] > stamps[-2] for each in samples(busy, stamps[-2]))
    assert node.nvml("nvmlDeviceGetSamples", 0, decoder, 0) == NOT_SUPPORTED
    assert node.nvml("nvmlDeviceGetSamples", 0, 99, 0) == INVALID


def test_accounting_is_off_and_has_no_processes(node: Client) -> None:
    assert node.nvml("nvmlDeviceGetAccountingMode", 0) == 0
    assert node.nvml("nvmlDeviceGetAccountingBufferSize", 0) == 4000
    assert node.nvml("nvmlDeviceGetAccountingPids", 0) == NOT_SUPPORTED
    assert node.nvml("nvmlDeviceGetAccountingStats", 0, 1) == NOT_SUPPORTED


ENGINES = {
    "nvmlDeviceGetEncoderUtilization": "encoder_percent",
    "nvmlDeviceGetDecoderUtilization": "decoder_percent",
    "nvmlDeviceGetJpgUtilization": "jpeg_percent",
    "nvmlDeviceGetOfaUtilization": "optical_flow_percent",
}


@pytest.mark.parametrize(("function", "value"), ENGINES.items())
def test_engines_are_busy_as_they_are_set(
    machine: Machine, node: Client, function: str, value: str
) -> None:
    assert node.nvml(function, 0) == NOT_SUPPORTED
    machine.ctl("set", "0", value, "42")
    assert node.nvml(function, 0) == [42, 167000]
    assert node.nvml(function, 1) == NOT_SUPPORTED


def test_encoders_have_sessions_when_they_are_set(machine: Machine, node: Client) -> None:
    assert node.nvml("nvmlDeviceGetEncoderStats", 0) == NOT_SUPPORTED
    for name, value in (("sessions", 2), ("fps", 30), ("latency_us", 900)):
        machine.ctl("set", "0", f"encoder_{name}", str(value))
    assert node.nvml("nvmlDeviceGetEncoderStats", 0) == [2, 30, 900]


def test_power_energy_and_temperature(machine: Machine, node: Client) -> None:
    energy = "nvmlDeviceGetTotalEnergyConsumption"
    sooner = node.nvml(energy, 0)
    wait(lambda: node.nvml(energy, 0) > sooner, "an idle card to have used energy")
    assert fields(node, [186, 187, 188, 189, 190]) == [60_000, 100_000, 400_000, 400_000, 400_000]
    assert fields(node, [83])[0] >= sooner
    machine.ctl("set", "0", "power_mw", "250500")
    machine.ctl("set", "0", "temperature_c", "91")
    assert node.nvml("nvmlDeviceGetPowerUsage", 0) == 250_500
    assert node.nvml("nvmlDeviceGetTemperature", 0, 0) == 91
    assert node.nvml("nvmlDeviceGetTemperatureV", 0, 0) == 91
    assert node.nvml("nvmlDeviceGetThermalSettings", 0, 0)[0]["currentTemp"] == 91
    assert fields(node, [186, 82]) == [250_500, None]
    machine.ctl("set", "0", "memory_temperature_c", "70")
    assert fields(node, [82]) == [70]
    assert node.nvml("nvmlDeviceGetPowerManagementMode", 0) == 1
    assert node.nvml("nvmlDeviceGetPowerSource", 0) == 0


def test_throttling_is_what_is_set(machine: Machine, node: Client) -> None:
    power, heat, sync_boost = 0, 1, 2
    status = "nvmlDeviceGetViolationStatus"
    assert node.nvml(status, 0, power)["violationTime"] == 0
    machine.ctl("set", "0", "thermal_throttled_ns", "5000000000")
    assert node.nvml(status, 0, heat)["violationTime"] == 5_000_000_000
    assert node.nvml(status, 0, sync_boost) == NOT_SUPPORTED
    assert node.nvml(status, 0, 99) == INVALID
    assert fields(node, [74, 75]) == [0, 5_000_000_000]


def test_clocks_and_states_that_can_be_had(node: Client) -> None:
    assert node.nvml("nvmlDeviceGetSupportedMemoryClocks", 0) == [1593]
    clocks = node.nvml("nvmlDeviceGetSupportedGraphicsClocks", 0, 1593)
    assert (clocks[0], clocks[-1], len(clocks)) == (1410, 210, 81)
    assert node.nvml("nvmlDeviceGetSupportedGraphicsClocks", 0, 1000) == {
        "error": "NVMLError_NotFound"
    }
    graphics, memory = 0, 2
    assert node.nvml("nvmlDeviceGetClock", 0, graphics, 0) == 210
    assert node.nvml("nvmlDeviceGetClock", 0, memory, 2) == 1593
    assert node.nvml("nvmlDeviceGetDefaultApplicationsClock", 0, graphics) == 1410
    assert node.nvml("nvmlDeviceGetMaxCustomerBoostClock", 0, graphics) == 1410
    assert node.nvml("nvmlDeviceGetSupportedPerformanceStates", 0) == [0]
    assert node.nvml("nvmlDeviceGetPowerState", 0) == 0
    assert node.nvml("nvmlDeviceGetSupportedClocksThrottleReasons", 0) == 1
    pstates = node.nvml("nvmlDeviceGetDynamicPstatesInfo", 0)
    assert [each["bIsPresent"] for each in pstates["utilization"][:3]] == [1, 1, 0]


def test_the_bus_has_replays_and_traffic_when_they_are_set(machine: Machine, node: Client) -> None:
    sent, received = 0, 1
    throughput = "nvmlDeviceGetPcieThroughput"
    assert node.nvml(throughput, 0, sent) == NOT_SUPPORTED
    machine.ctl("set", "0", "pcie_tx_kib_per_s", "1048576")
    machine.ctl("set", "0", "pcie_rx_kib_per_s", "2048")
    assert [node.nvml(throughput, 0, each) for each in (sent, received)] == [1_048_576, 2048]
    assert node.nvml(throughput, 0, 2) == INVALID
    assert node.nvml("nvmlDeviceGetPcieReplayCounter", 0) == 0
    machine.ctl("set", "0", "pcie_replays", "9")
    assert node.nvml("nvmlDeviceGetPcieReplayCounter", 0) == 9
    assert fields(node, [94]) == [9]
    assert node.nvml("nvmlDeviceGetPcieSpeed", 0) == 16_000
    assert node.nvml("nvmlDeviceGetGpuMaxPcieLinkGeneration", 0) == 4


def test_a_card_has_a_fan_when_its_speed_is_set(machine: Machine, node: Client) -> None:
    assert node.nvml("nvmlDeviceGetNumFans", 0) == 0
    assert node.nvml("nvmlDeviceGetFanSpeed", 0) == NOT_SUPPORTED
    machine.ctl("set", "0", "fan_percent", "55")
    assert node.nvml("nvmlDeviceGetNumFans", 0) == 1
    assert node.nvml("nvmlDeviceGetFanSpeed", 0) == 55
    assert node.nvml("nvmlDeviceGetFanSpeed_v2", 0, 0) == 55
    assert node.nvml("nvmlDeviceGetFanSpeed_v2", 0, 1) == INVALID


def test_what_a_card_is(machine: Machine, node: Client) -> None:
    assert node.nvml("nvmlDeviceGetArchitecture", 0) == 7  # Ampere
    assert node.nvml("nvmlDeviceGetNumGpuCores", 0) == 6912
    assert node.nvml("nvmlDeviceGetMemoryBusWidth", 0) == 5120
    assert node.nvml("nvmlDeviceGetBusType", 0) == 2
    assert node.nvml("nvmlDeviceGetVirtualizationMode", 0) == 0
    assert node.nvml("nvmlDeviceGetMultiGpuBoard", 0) == 0
    assert node.nvml("nvmlDeviceGetBoardId", 0) == 0x4E00
    assert node.nvml("nvmlDeviceGetGspFirmwareVersion", 0) == "570.124.06"
    assert node.nvml("nvmlGpmQueryDeviceSupport", 0)["isSupportedDevice"] == 0
    assert node.nvml("nvmlGetExcludedDeviceCount") == 0
    assert node.nvml("nvmlUnitGetCount") == 0


@pytest.mark.parametrize(
    ("major", "minor", "architecture", "cores"),
    [(7, 0, 5, 6912), (7, 5, 6, 6912), (8, 9, 8, 13824), (9, 0, 9, 13824), (10, 0, 10, 13824)],
)
def test_architecture_and_cores_follow_the_compute_capability(
    machine: Machine, major: int, minor: int, architecture: int, cores: int
) -> None:
    machine.settings["devices"][0] |= {"major": major, "minor": minor}
    machine.write()
    node = machine.start(machine.env())
    assert node.nvml("nvmlDeviceGetArchitecture", 0) == architecture
    assert node.nvml("nvmlDeviceGetNumGpuCores", 0) == cores


def test_cards_near_a_card_are_those_of_its_node(machine: Machine) -> None:
    machine.settings["devices"][1]["numa"] = 1
    machine.write()
    node = machine.start(machine.env())
    of_a_node, of_the_system = 40, 50
    assert node.call("nvml_neighbours", index=0, level=of_a_node) == []
    assert node.call("nvml_neighbours", index=0, level=of_the_system) == [1]


def test_values_are_set_in_the_machines_file_too(machine: Machine) -> None:
    machine.settings["devices"][1]["values"] = {"pcie_replays": 4, "ecc_corrected": None}
    machine.write()
    node = machine.start(machine.env())
    assert node.nvml("nvmlDeviceGetPcieReplayCounter", 1) == 4
    assert node.nvml("nvmlDeviceGetTotalEccErrors", 1, 0, 0) == NOT_SUPPORTED


@pytest.mark.parametrize("values", [{"pcie_reply": 4}, {"pcie_replays": -1}, {"pcie_replays": "4"}])
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
    "wrong", [("no_such_value", "1"), ("pcie_replays", "-1"), ("pcie_replays", "4x")]
)
def test_a_wrong_value_is_not_set(machine: Machine, wrong: tuple[str, str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        machine.ctl("set", "0", *wrong)


def test_a_lost_card_answers_nothing_of_all_this(machine: Machine, node: Client) -> None:
    machine.ctl("lose", CARDS[1])
    codes = node.call("nvml_neighbours", index=0, level=50)
    assert codes == []
    lost = {"error": "NVMLError_GpuIsLost"}
    assert node.nvml("nvmlDeviceGetRemappedRows", 1) == lost
    assert node.nvml("nvmlDeviceGetFieldValues", 1, [91]) == lost


def test_an_instance_of_a_card_has_no_counters_of_its_own(machine: Machine) -> None:
    machine.settings["devices"][0] |= {
        "memory_mib": 81920,
        "mig": [{"uuid": "MIG-11111111-0000-5000-8000-000000000001", "memory_mib": 9728}],
    }
    machine.write()
    node = machine.start(machine.env())
    codes = node.call(
        "nvml_instance_codes",
        index=0,
        names=["nvmlDeviceGetFieldValues", "nvmlDeviceGetPcieReplayCounter"],
    )
    assert codes == {
        "nvmlDeviceGetFieldValues": NOT_SUPPORTED_CODE,
        "nvmlDeviceGetPcieReplayCounter": NOT_SUPPORTED_CODE,
    }
