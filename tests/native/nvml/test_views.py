"""NVML as pynvml sees it: the slice in a container, the whole card on the node, health events."""

from tests.native.machine import CARDS, MIB, Client, Container, Machine
from tests.waiting import PATIENCE_S, wait


def open_context(client: Client) -> Client:
    assert client.call("open_device") == {"result": 0}
    return client


def test_a_container_sees_its_slice(container: Container) -> None:
    container.limit(100 * MIB)
    one, two = open_context(container.start()), container.start()
    one.alloc(30 * MIB)
    assert two.nvml("nvmlDeviceGetMemoryInfo", 0) == {
        "total": 100 * MIB,
        "free": 70 * MIB,
        "used": 30 * MIB,
    }
    version2 = two.nvml("nvmlDeviceGetMemoryInfo", 0, 0x02000028)
    assert (version2["total"], version2["used"], version2["free"]) == (
        100 * MIB,
        30 * MIB,
        70 * MIB,
    )


def test_used_beyond_a_lowered_limit_never_shows_as_a_negative_number(container: Container) -> None:
    container.limit(100 * MIB)
    one = open_context(container.start())
    one.alloc(90 * MIB)
    container.limit(40 * MIB)
    memory = container.start().nvml("nvmlDeviceGetMemoryInfo", 0)
    assert memory == {"total": 40 * MIB, "free": 0, "used": 90 * MIB}


def test_a_program_of_nvml_alone_takes_no_slot(container: Container) -> None:
    container.limit(100 * MIB)
    container.start().nvml("nvmlDeviceGetMemoryInfo", 0)
    assert container.region.read_bytes()[2008896:2008900] == bytes(4)


def test_the_node_sees_all_of_the_card(machine: Machine, container: Container) -> None:
    container.limit(100 * MIB)
    tenant = open_context(container.start())
    tenant.alloc(30 * MIB)
    node = machine.start(machine.env())
    assert node.nvml("nvmlDeviceGetMemoryInfo", 0) == {
        "total": 8192 * MIB,
        "free": 8162 * MIB,
        "used": 30 * MIB,
    }
    users = node.nvml("nvmlDeviceGetComputeRunningProcesses", 0)
    assert len(users) == 1


def test_what_a_device_plugin_asks(machine: Machine) -> None:
    machine.settings["devices"][0] |= {
        "numa": 1,
        "nvlinks": [1, 1],
        "pci_bus_id": "00000000:4E:00.0",
    }
    machine.write()
    node = machine.start(machine.env())
    assert node.nvml("nvmlSystemGetDriverVersion") == "570.124.06"
    assert node.nvml("nvmlSystemGetCudaDriverVersion_v2") == 12080
    assert node.nvml("nvmlDeviceGetCount") == 2
    assert [node.nvml("nvmlDeviceGetUUID", i) for i in (0, 1)] == list(CARDS)
    assert node.nvml("nvmlDeviceGetName", 0) == "NVIDIA A100-SXM4-80GB"
    assert node.nvml("nvmlDeviceGetMinorNumber", 1) == 1
    assert node.nvml("nvmlDeviceGetIndex", 1) == 1
    assert node.nvml("nvmlDeviceGetPciInfo", 0)["busId"] == "00000000:4E:00.0"
    assert node.nvml("nvmlDeviceGetCudaComputeCapability", 0) == [8, 0]
    assert node.nvml("nvmlDeviceGetMigMode", 0) == [0, 0]
    assert node.nvml("nvmlDeviceGetNumaNodeId", 0) == 1
    assert node.nvml("nvmlDeviceGetMemoryAffinity", 0, 2, 0) == [2, 0]
    assert [node.nvml("nvmlDeviceGetNvLinkState", 0, i) for i in (0, 1, 2)] == [1, 1, 0]
    assert node.nvml("nvmlDeviceGetNvLinkState", 1, 0) == {"error": "NVMLError_NotSupported"}
    assert node.nvml("nvmlDeviceGetUUID", 2) == {"error": "NVMLError_InvalidArgument"}


def test_a_container_runtime_hides_the_other_cards(machine: Machine) -> None:
    tenant = machine.start(machine.env(FAKEGPU_VISIBLE_DEVICES=CARDS[1]))
    assert tenant.nvml("nvmlDeviceGetCount") == 1
    assert tenant.nvml("nvmlDeviceGetUUID", 0) == CARDS[1]
    assert open_context(tenant).call("uuid")["uuid"] == CARDS[1]
    nothing = machine.start(machine.env(FAKEGPU_VISIBLE_DEVICES="void"))
    assert nothing.nvml("nvmlDeviceGetCount") == 0
    assert nothing.call("open_device") == {"result": 100}


def test_an_xid_reaches_a_waiting_health_check(machine: Machine) -> None:
    node = machine.start(machine.env())
    node.send("wait_event", index=1, timeout_ms=int(PATIENCE_S) * 1000)
    assert node.receive() == "registered"
    machine.ctl("xid", "0", "31")
    machine.ctl("xid", "1", "48")
    assert node.receive() == {"type": 8, "data": 48}


def test_waiting_for_an_event_ends(machine: Machine) -> None:
    node = machine.start(machine.env())
    node.send("wait_event", index=1, timeout_ms=10)
    assert node.receive() == "registered"
    assert node.receive() == {"error": "NVMLError_Timeout"}


def test_a_lost_card_answers_so_until_it_is_restored(machine: Machine) -> None:
    node = machine.start(machine.env())
    machine.ctl("lose", CARDS[0])
    assert node.nvml("nvmlDeviceGetUUID", 0) == {"error": "NVMLError_GpuIsLost"}
    assert node.nvml("nvmlDeviceGetUUID", 1) == CARDS[1]
    machine.ctl("restore", CARDS[0])
    assert node.nvml("nvmlDeviceGetUUID", 0) == CARDS[0]


def test_kernels_keep_the_card_busy(machine: Machine) -> None:
    tenant, node = open_context(machine.start(machine.env())), machine.start(machine.env())
    # 108 SMs x 2048 threads are a wave of 50 us, filled by 216 blocks of 1024 threads: 3 s of work.
    tenant.send("launch", kernels=600, blocks=216 * 100)
    wait(lambda: node.nvml("nvmlDeviceGetUtilizationRates", 0)["gpu"] >= 80, "the card to be busy")
    samples = node.nvml("nvmlDeviceGetProcessUtilization", 0, 0)
    assert [sample["pid"] for sample in samples] == [tenant.pid]
    assert node.nvml("nvmlDeviceGetUtilizationRates", 1)["gpu"] == 0
    assert tenant.receive() == {"result": 0}
