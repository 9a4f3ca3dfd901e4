"""Regions joined with grants, processes and the driver; samples and feedback made of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.grants.limits_file import CoreFeedback
from hami_node_agent.grants.records import AgentState, PodsSeen, Record
from hami_node_agent.grants.state import NodeState
from hami_node_agent.usage.feedback import PRIORITY_ENV, Feedback, LimitsWriter
from hami_node_agent.usage.feedback_rules import BLOCK_S
from hami_node_agent.usage.monitor import ContainerUse, Monitor, Owners
from hami_node_agent.usage.regions.reader import Regions, read_region
from hami_node_agent.usage.sampler import container_samples
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample
from hamicommon.vendors.nvidia import nvidia

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_grant, a_record
from tests.unit.node_agent.region_files import MIB, Slot, v1_file
from tests.waiting import eventually

NOW = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
KERNEL_S = int((NOW - timedelta(seconds=3)).timestamp())


class Node:
    """Cards, processes and pods; the directories are real."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.records: list[Record] = []
        self.pods: dict[str, PodRef] = {}
        self.ended: set[str] = set()
        self.env: dict[str, dict[str, str]] = {}
        self.cards: dict[str, CardProcesses] = {}
        self.alive: dict[int, HostProcess] = {}
        self.driver = True
        self.sees_processes = True
        self.written: dict[str, CoreFeedback] = {}

    def write_feedback(self, nonce: str, feedback: CoreFeedback) -> None:
        self.written[nonce] = feedback

    async def processes(self) -> Mapping[str, CardProcesses]:
        if not self.driver:
            raise Unavailable("no answer")
        return self.cards

    def living(self, pids: Iterable[int]) -> dict[int, HostProcess]:
        return {pid: self.alive[pid] for pid in pids if pid in self.alive}

    def snapshot(self) -> PodsSeen:
        return PodsSeen(ended=frozenset(PodUid(uid) for uid in self.ended))

    def name_of(self, pod_uid: str) -> PodRef | None:
        return self.pods.get(pod_uid)

    def literal_env(self, pod_uid: str, container: str) -> dict[str, str] | None:
        del container
        return self.env.get(pod_uid)

    def region(self, directory: str, *slots: Slot, **fields: Any) -> Path:
        (self.base / directory).mkdir(exist_ok=True)
        file = self.base / directory / "x.cache"
        return v1_file(file, *slots, **{"last_kernel_epoch_s": KERNEL_S, **fields})

    def add_record(self, pod: str = "pod-1", **changes: Any) -> None:
        record = a_record(a_grant(pod=pod), ids={"x"}, nonce=f"nonce of {pod}")
        self.records.append(dataclasses.replace(record, **changes))

    def monitor(self) -> Monitor:
        port: Any = self
        state = NodeState(port, AgentState().with_records(self.records))
        seen = port if self.sees_processes else None
        return Monitor(port, Regions(self.base), Owners(state, port), processes=seen)


async def samples(monitor: Monitor) -> list[ContainerSample]:
    seen = await monitor.look()
    return [sample for one in seen for sample in container_samples(one, now=NOW)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_sample_has_what_was_granted_and_what_is_held(node: Node) -> None:
    node.add_record()
    node.region("pod-1_main", Slot(total_bytes=5 * MIB), utilization_switch=0)

    [sample] = await samples(node.monitor())

    assert (sample.pod_uid, sample.pod, sample.container) == ("pod-1", "name-of-pod-1", "main")
    assert (sample.uuid, sample.vdevice_index) == (CARD_A, 0)
    assert (sample.memory_used_bytes, sample.memory_limit_bytes) == (5 * MIB, 4096 * MIB)
    assert (sample.core_percent, sample.core_limit_percent) == (11.0, 30)
    assert sample.last_kernel_at == datetime.fromtimestamp(KERNEL_S, UTC)


async def test_a_finished_pod_counts_no_more_and_a_deleted_one_until_it_has_left(
    node: Node,
) -> None:
    for pod in ("runs", "finished", "deleted"):
        node.add_record(pod, cache_dir=f"{pod}_main")
        node.region(f"{pod}_main", Slot(total_bytes=5 * MIB))
        node.pods[pod] = PodRef(uid=PodUid(pod), namespace="default", name=pod)
    monitor = node.monitor()
    assert len(await samples(monitor)) == 3

    node.ended = {"finished", "deleted"}
    del node.pods["deleted"]

    assert {sample.pod_uid for sample in await samples(monitor)} == {"runs", "deleted"}


async def test_limits_are_the_grants_whatever_the_region_has(node: Node) -> None:
    node.add_record()
    file = node.region("pod-1_main")
    body = bytearray(file.read_bytes())
    body[1600:1608] = (2**50).to_bytes(8, "little")
    file.write_bytes(body)

    [sample] = await samples(node.monitor())
    assert sample.memory_limit_bytes == 4096 * MIB

    node.records[0] = dataclasses.replace(node.records[0], foreign=True)
    [sample] = await samples(node.monitor())
    assert sample.memory_limit_bytes is None


async def test_a_region_is_believed_about_its_own_cards_alone(node: Node) -> None:
    node.add_record()
    node.region("pod-1_main", uuids=(CARD_A, CARD_B))

    assert [sample.uuid for sample in await samples(node.monitor())] == [CARD_A]


async def test_the_record_decides_whose_a_directory_is_before_its_name_does(node: Node) -> None:
    node.add_record(cache_dir="pod-2_main")
    node.pods["pod-2"] = PodRef(uid="pod-2", namespace="default", name="two")
    node.region("pod-2_main")
    node.region("pod-2_other")
    node.region("unknown_main")

    found = await samples(node.monitor())

    assert [(sample.pod, sample.container) for sample in found] == [
        ("name-of-pod-1", "main"),
        ("two", "other"),
    ]


async def test_a_killed_process_holds_nothing_any_more(node: Node) -> None:
    """The slot stays until another process of the container looks."""
    node.add_record()
    node.region("pod-1_main", Slot(pid=1, started_ticks=500, total_bytes=5 * MIB))
    node.cards[CARD_A] = CardProcesses(pids=frozenset({4711}), busy_percent={4711: 40.0})
    node.alive[4711] = HostProcess(host_pid=4711, inner_pid=1, started_ticks=500, pod_uid="pod-1")
    monitor = node.monitor()

    [sample] = await samples(monitor)
    assert (sample.memory_used_bytes, sample.core_percent, sample.processes) == (5 * MIB, 40.0, 1)

    node.alive.clear()
    node.cards[CARD_A] = CardProcesses(busy_percent={})
    [sample] = await samples(monitor)
    assert (sample.memory_used_bytes, sample.core_percent, sample.processes) == (0, 0.0, 0)


async def test_without_the_hosts_processes_the_regions_own_figures_count(node: Node) -> None:
    node.add_record()
    node.region("pod-1_main", Slot(host_pid=99, started_ticks=500))
    node.sees_processes = False

    [sample] = await samples(node.monitor())

    assert (sample.memory_used_bytes, sample.core_percent) == (6, 11.0)


async def test_a_driver_that_does_not_answer_hides_the_percentage_alone(node: Node) -> None:
    node.add_record()
    node.region("pod-1_main", Slot(started_ticks=500, sm_percent=0))
    node.driver = False

    [sample] = await samples(node.monitor())

    assert (sample.memory_used_bytes, sample.core_percent) == (6, None)


@pytest.mark.parametrize("epoch_s", [0, KERNEL_S + 3600, 2**63])
async def test_a_time_that_cannot_be_is_unknown(node: Node, epoch_s: int) -> None:
    node.add_record()
    node.region("pod-1_main", last_kernel_epoch_s=epoch_s)

    [sample] = await samples(node.monitor())

    assert sample.last_kernel_at is None


async def test_the_first_pod_makes_the_second_wait_and_lets_it_go(node: Node) -> None:
    node.add_record("pod-1")
    node.add_record("pod-2")
    assert PRIORITY_ENV == nvidia.PRIORITY_ENV
    node.env = {"pod-1": {PRIORITY_ENV: "0"}, "pod-2": {}}
    first, second = node.region("pod-1_main"), node.region("pod-2_main")
    port: Any = node
    monitor = node.monitor()
    feedback = Feedback(monitor, port, LimitsWriter(port), clock=lambda: 1_800_000_000)

    def switches(file: Path) -> tuple[int, int]:
        reading = read_region(file)
        assert reading is not None
        return reading.region.recent_kernel, reading.region.utilization_switch

    await feedback.round(await monitor.containers())
    assert (switches(first), switches(second)) == ((1, 0), (-1, 1))
    assert node.written == {
        "nonce of pod-1": CoreFeedback(relaxed=True),
        "nonce of pod-2": CoreFeedback(waits_until_s=1_800_000_000 + BLOCK_S),
    }
    await feedback.round(await monitor.containers())
    assert (switches(first), switches(second)) == ((0, 0), (0, 0))
    assert set(node.written.values()) == {CoreFeedback(relaxed=True)}


async def test_an_agent_that_stops_makes_nobody_wait(node: Node) -> None:
    node.add_record("pod-1")
    node.add_record("pod-2")
    node.env = {"pod-1": {PRIORITY_ENV: "0"}, "pod-2": {}}
    node.region("pod-1_main")
    second = node.region("pod-2_main")
    port: Any = node
    loop = asyncio.create_task(Feedback(node.monitor(), port, LimitsWriter(port)).run())
    await eventually(lambda: _recent_kernel(second) == -1, "the second to wait")

    loop.cancel()
    await asyncio.wait([loop])

    assert node.written["nonce of pod-2"] == CoreFeedback()
    assert _recent_kernel(second) == 0


def _recent_kernel(file: Path) -> int:
    reading = read_region(file)
    assert reading is not None
    return reading.region.recent_kernel


async def test_a_tenant_does_not_get_first_by_writing_so(node: Node) -> None:
    """The priority in the region is 1 here as everywhere; what counts is the pod's spec."""
    node.add_record("pod-1")
    node.add_record("pod-2")
    node.env = {"pod-1": {PRIORITY_ENV: "nonsense"}}
    file = node.region("pod-1_main")
    body = bytearray(file.read_bytes())
    body[2008908:2008912] = bytes(4)
    file.write_bytes(body)
    other = node.region("pod-2_main")
    port: Any = node

    monitor = node.monitor()
    await Feedback(monitor, port, LimitsWriter(port)).round(await monitor.containers())

    reading = read_region(other)
    assert reading is not None
    assert reading.region.recent_kernel == 1


async def test_two_that_look_at_the_same_time_read_once(node: Node) -> None:
    node.add_record()
    file = node.region("pod-1_main")
    monitor = node.monitor()
    soon = asyncio.ensure_future(monitor.containers_soon(3600))
    await asyncio.sleep(0)
    [seen] = await monitor.look()

    file.unlink()

    assert await soon == [seen.container]
    assert await monitor.containers_soon(0) == []


async def test_of_what_did_not_change_nothing_is_made_again_and_each_change_is_seen(
    node: Node,
) -> None:
    node.add_record()
    region = node.region("pod-1_main", Slot(pid=7, host_pid=70, started_ticks=5))
    node.alive[70] = HostProcess(host_pid=70, inner_pid=7, started_ticks=5, pod_uid="pod-1")
    monitor = node.monitor()

    async def look() -> ContainerUse:
        [seen] = await monitor.look()
        return seen

    first = await look()
    assert await look() is first

    node.cards = {CARD_A: CardProcesses(pids=frozenset({70}), busy_percent={70: 40.0})}
    computing = await look()
    assert (first.uses[0].core_percent, computing.uses[0].core_percent) == (11.0, 40.0)
    assert await look() is computing

    v1_file(region, Slot(pid=7, host_pid=70, started_ticks=5, total_bytes=9 * MIB))
    more = await look()
    assert (more.uses[0].total_bytes, more.host_pids) == (9 * MIB, ((7, 70, 5),))

    node.alive.clear()
    gone = await look()
    assert (gone.uses[0].processes, gone.host_pids) == (0, ())
    assert await look() is gone
