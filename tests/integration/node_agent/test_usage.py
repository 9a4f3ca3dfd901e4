"""Usage of regions and cards, inventory, events and expiries, on the bus and at /metrics."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from hami_node_agent.usage.regions.reader import read_region
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamilocal.system.layout import ensure_credentials
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import (
    CARDS,
    FAKEGPU,
    AgentProcess,
    Kubelet,
    Machine,
    mounts_of,
)
from tests.native.machine import LIBVGPU, Client
from tests.unit.node_agent.region_files import v1_file
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native


MIB = 1024 * 1024
# A second of work of the stand-in's card: waves of 50 us of all the threads that it holds.
SECOND_BLOCKS = 20_000 * 108 * 2048 // 1024


def region_of(answer: api.ContainerAllocateResponse) -> Path:
    name = Path(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
    return mounts_of(answer)["/usr/local/vgpu"] / name


def values(agent: AgentProcess, name: str) -> list[float]:
    """The numbers of a metric's samples."""
    _, text = agent.get("/metrics")
    return [float(n) for n in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]


async def shows(agent: AgentProcess, name: str, *wanted: float) -> None:
    """Wait until the metric's samples are these."""

    async def now() -> list[float]:
        return await asyncio.to_thread(values, agent, name)

    async with asyncio.timeout(PATIENCE_S):
        while await now() != list(wanted):
            await asyncio.sleep(0.05)


async def test_a_containers_region_is_sampled_for_bus_and_prometheus(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", f"{CARDS[0]}-0")
    await kubelet.prestart(f"{CARDS[0]}-0")
    v1_file(region_of(answer))

    usage = await eventually(
        lambda: next((u for u in control.usages if u.containers and u.devices), None)
    )

    [sample] = usage.containers
    assert (sample.pod_uid, sample.pod, sample.container) == ("a", "name-of-a", "main")
    assert (sample.uuid, sample.memory_used_bytes, sample.core_percent) == (CARDS[0], 6, 11.0)
    assert [device.uuid for device in usage.devices] == list(CARDS)
    status, text = agent.get("/metrics")
    assert status == 200
    assert "hami_vgpu_memory_limit_bytes{" in text
    assert f'device_uuid="{CARDS[1]}"' in text


async def test_what_does_not_change_is_published_once_and_with_its_rounds_at_the_end(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", f"{CARDS[0]}-0")
    await kubelet.prestart(f"{CARDS[0]}-0")
    await eventually(lambda: control.usages)
    v1_file(region_of(answer))
    changed = await eventually(lambda: next((u for u in control.usages if u.containers), None))

    assert await asyncio.to_thread(agent.stop, signal.SIGTERM) == 0

    def rounds_of(series: str) -> list[datetime]:
        """When a card was seen; "" is the container."""
        return [
            at
            for usage in control.usages
            for moments, devices, containers in (
                ((usage.sampled_at,), usage.devices, usage.containers),
                *(
                    (usage.earlier_rounds[-past.rounds :], past.devices, past.containers)
                    for past in usage.unchanged
                ),
            )
            for at in moments
            if series in [card.uuid for card in devices] or (not series and containers)
        ]

    await eventually(lambda: changed.sampled_at <= max(rounds_of(CARDS[1])))
    assert sorted(rounds_of(CARDS[0])) == sorted(rounds_of(CARDS[1]))
    assert set(rounds_of("")) <= set(rounds_of(CARDS[1]))
    assert len(set(rounds_of(CARDS[1]))) == len(rounds_of(CARDS[1]))


@pytest.fixture
async def answer(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> api.ContainerAllocateResponse:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", f"{CARDS[0]}-0")
    await kubelet.prestart(f"{CARDS[0]}-0")
    return answer


@pytest.fixture
def program(machine: Machine, answer: api.ContainerAllocateResponse) -> Iterator[Client]:
    """A program in the container, under libvgpu."""
    client = Client(
        {
            "PATH": machine.env()["PATH"],
            "LD_LIBRARY_PATH": str(FAKEGPU),
            "LD_PRELOAD": f"{LIBVGPU}:{FAKEGPU / 'libpathmap.so'}",
            "HAMI_PATHMAP": ";".join(
                f"{inside}={mounts_of(answer)[inside]}"
                for inside in ("/etc/hami", "/usr/local/vgpu")
            ),
            "FAKEGPU_CONFIG": str(machine.root / "fakegpu.json"),
            "FAKEGPU_VISIBLE_DEVICES": CARDS[0],
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region_of(answer)),
        }
    )
    try:
        assert client.call("open_device", ordinal=0) == {"result": 0}
        yield client
    finally:
        client.kill()


async def test_metrics_follow_what_a_program_does(agent: AgentProcess, program: Client) -> None:
    """Allocates, computes, frees, is killed with memory in its hands."""
    result, pointer = program.alloc(512 * MIB)
    assert result == 0
    await shows(agent, "hami_vgpu_memory_used_bytes", 512 * MIB)
    await shows(agent, "hami_vgpu_memory_limit_bytes", 4096 * MIB)
    await shows(agent, "hami_vgpu_core_limit_percent", 30)
    await shows(agent, "hami_vgpu_core_used_percent", 0)

    program.call("launch", kernels=3, blocks=SECOND_BLOCKS)
    await shows(agent, "hami_vgpu_core_used_percent", 100)
    assert values(agent, "hami_container_last_kernel_elapsed_seconds")[0] < 60

    assert program.free(pointer) == 0
    await shows(agent, "hami_vgpu_memory_used_bytes", 0)
    await shows(agent, "hami_vgpu_core_used_percent", 0)

    program.alloc(256 * MIB)
    await shows(agent, "hami_vgpu_processes", 1)
    program.process.send_signal(signal.SIGKILL)
    program.process.wait()
    await shows(agent, "hami_vgpu_processes", 0)
    await shows(agent, "hami_vgpu_memory_used_bytes", 0)


async def test_a_region_full_of_rubbish_is_a_metric_and_one_line_in_the_log(
    agent: AgentProcess, program: Client, answer: api.ContainerAllocateResponse
) -> None:
    program.alloc(MIB)
    await shows(agent, "hami_vgpu_memory_used_bytes", MIB)

    with region_of(answer).open("r+b") as region:
        region.write(b"rubbish!")

    await shows(agent, "hami_node_agent_unreadable_regions", 1)
    await eventually(lambda: values(agent, "hami_node_agent_region_failures_total")[0] > 2)
    assert values(agent, "hami_vgpu_memory_used_bytes") == []
    assert agent.log.count("Ignoring an unusable region") == 1


async def test_the_feedback_loop_frees_a_lone_container_of_its_core_limit(
    agent: AgentProcess, program: Client, answer: api.ContainerAllocateResponse
) -> None:
    def switch() -> int | None:
        reading = read_region(region_of(answer))
        return None if reading is None else reading.region.utilization_switch

    program.alloc(MIB)

    await eventually(lambda: switch() == 0)
    limits = mounts_of(answer)["/etc/hami"] / "limits"
    assert limits.read_text().endswith("utilization_switch 0\n")


KILLS = 3


async def test_an_unscheduled_pod_gets_the_reason_in_an_event(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet
) -> None:
    await api_pods.create("unscheduled")
    for _ in range(KILLS):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.allocate(api_pods.uids["unscheduled"], "main", f"{CARDS[0]}-0")
        if await api_pods.events("unscheduled"):
            break

    [message, *_] = await api_pods.events("unscheduled")
    assert "set spec.schedulerName" in message


async def test_inventory_is_repeated_and_lists_what_the_node_offers(
    agent: AgentProcess, control: Control
) -> None:
    await eventually(lambda: len(control.inventories) >= 2)

    first, second = control.inventories[:2]
    assert (first.agent_id, first.sequence + 1) == (second.agent_id, second.sequence)
    assert [(d.uuid, d.slots, d.memory_mib, d.core_percent) for d in second.devices] == [
        (uuid, 10, 81920, 100) for uuid in CARDS
    ]


async def test_allocate_continues_the_trace_of_the_grant(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await control.announce(grant("a", traceparent=f"00-{trace_id}-b7ad6b7169203331-01"))

    await kubelet.allocate("a", "main", f"{CARDS[0]}-0")

    [report] = await eventually(lambda: control.reports_of("allocated"))
    assert trace_id in report.traceparent
    agent.stop(signal.SIGTERM)
    spans = [json.loads(line) for line in (machine.root / "traces.jsonl").read_text().splitlines()]
    [span] = [span for span in spans if span["name"] == "allocate"]
    assert span["context"]["trace_id"] == f"0x{trace_id}"
    assert span["attributes"]["k8s.pod.uid"] == "a"


NAME = "hami_certificate_expiry_timestamp_seconds"


def expiries(text: str) -> dict[str, float]:
    return {
        sample.labels["certificate"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == NAME
    }


def end_of(authority: Path) -> float:
    certificate = x509.load_pem_x509_certificate(authority.read_bytes())
    return certificate.not_valid_after_utc.timestamp()


async def test_the_agent_shows_when_the_authorities_of_its_servers_expire(
    machine: Machine, api_server: ApiServer, folder: Path
) -> None:
    # Another authority than the API server's. No server listens there; it is loaded nevertheless.
    bus_authority = ensure_credentials(folder / "bus", serving=("nats",)).ca
    machine.nats_url = "tls://127.0.0.1:9"
    machine.extra["HAMI_NATS_TLS_CA_FILE"] = str(bus_authority)
    wanted = {"nats": end_of(bus_authority), "kubernetes": end_of(api_server.authority)}
    with AgentProcess(machine) as agent:
        await eventually(lambda: expiries(agent.get("/metrics")[1]) == wanted)
