"""Choice of the pods to requeue when capacity became free."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.requeue import MAX_PASSED_OVER, MAX_REQUEUED, Requeuer
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hami_scheduler.ports.ledger import CardReader
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest
from hamicommon.placement.cluster.view import CardState
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.fakes.pods import FakePodApi
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))


class NeverAsked(CardReader):
    """The view is filled by hand."""


@pytest.fixture
def view() -> ClusterState:
    """One card with room for a hundred small pods."""
    made = state_of(NeverAsked(), VENDORS.rules)
    device = GpuDevice(
        uuid=GpuUuid("GPU-0"),
        index=0,
        vendor="NVIDIA",
        type="A100",
        slots=100,
        memory_mib=10_000,
        core_percent=100,
    )
    made.cluster.set_node(NodeName("n"), [CardState(DeviceUsage(device=device), 1)])
    return made


def pod(number: int, *, memory_mib: int = 100, priority: int = 0) -> WaitingPod:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    name, uid = f"p{number}", f"u{number:03d}"
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return WaitingPod(
        uid=PodUid(uid),
        namespace="default",
        name=name,
        created_at=f"2026-01-01T00:00:{number:02d}Z",
        priority=priority,
        request=pod_request(body, VENDORS),
    )


async def woken(view: ClusterState, *pods: WaitingPod) -> list[str]:
    waiting = WaitingPods()
    for one in pods:
        waiting.add(one)
    requeuer = Requeuer(
        view=view, waiting=waiting, pods=FakePodApi(), instruments=SchedulerInstruments()
    )
    return [one.name for one in await requeuer.fitting()]


async def test_at_most_ten_are_woken_at_once_the_oldest_first(view: ClusterState) -> None:
    found = await woken(view, *(pod(number) for number in reversed(range(30))))

    assert found == [f"p{number}" for number in range(MAX_REQUEUED)]


async def test_a_higher_priority_goes_first(view: ClusterState) -> None:
    assert await woken(view, pod(1), pod(2, priority=5)) == ["p2", "p1"]


async def test_who_does_not_fit_sleeps_on_and_hides_nobody(view: ClusterState) -> None:
    large = [pod(number, memory_mib=20_000) for number in range(20)]

    assert await woken(view, *large, pod(50)) == ["p50"]


async def test_a_pass_over_ten_thousand_pods_that_do_not_fit_lets_others_work(
    view: ClusterState,
) -> None:
    waiting = WaitingPods()
    large = pod(1, memory_mib=20_000)
    for number in range(10_000):
        waiting.add(replace(large, uid=PodUid(f"u{number:05d}")))
    requeuer = Requeuer(
        view=view, waiting=waiting, pods=FakePodApi(), instruments=SchedulerInstruments()
    )
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(work())
    assert await requeuer.fitting() == []
    others.cancel()

    assert turns >= 10_000 // MAX_PASSED_OVER


async def test_shapes_whose_hashes_are_equal_do_not_share_a_fate(
    view: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodRequest, "__hash__", lambda _: 1, raising=False)
    monkeypatch.setattr(ContainerRequest, "__hash__", lambda _: 1)
    monkeypatch.setattr(DeviceRequest, "__hash__", lambda _: 1)

    assert await woken(view, pod(1, memory_mib=20_000), pod(2)) == ["p2"]
