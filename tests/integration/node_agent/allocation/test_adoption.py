"""Pods that HAMi started and pods that came past the scheduler, on a node of ours."""

import asyncio
from typing import Any

import grpc
import pytest
from hamicommon import events
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant

from tests.hami.answers import hami_answer
from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
    mounts_of,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.native]

A_0, A_1, B_0 = f"{CARDS[0]}-0", f"{CARDS[0]}-1", f"{CARDS[1]}-0"


async def holdings(control: Control) -> events.NodeHoldings:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                reply = await control.bus.request(
                    events.holdings_subject(NODE), events.HoldingsRequest(node=NODE)
                )
                return events.NodeHoldings.model_validate_json(reply)
            except Unavailable:
                await asyncio.sleep(0.05)


def old(kubelet: Kubelet, pod: str, *, machine: Machine, name: str = "old") -> None:
    """A container of HAMi's: shown card 0 with 4096 MiB and 30 %, on an id of card 1."""
    answer = hami_answer(
        pod, "main", {CARDS[0]: 4096}, core_percent=30, base=str(machine.root / "hook" / "vgpu")
    )
    kubelet.keep(pod, "main", B_0, answer=answer, name=name)


async def test_the_node_reports_hamis_answer(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    old(kubelet, "a", machine=machine)

    reply = await holdings(control)

    assert (reply.node, reply.readable, reply.problems) == (NODE, True, ())
    [one] = reply.containers
    assert (one.pod_uid, one.container, one.ours) == ("a", "main", False)
    assert (one.device_ids, one.cards_of_ids) == ((B_0,), (CARDS[1],))
    assert (one.visible, one.memory_mib, one.core_percent) == ((CARDS[0],), (4096,), 30)


async def test_a_damaged_checkpoint_is_reported_and_podresources_goes_on(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await api_pods.create("old")
    old(kubelet, api_pods.uids["old"], machine=machine)
    machine.checkpoint.write_bytes(b'{"Data": null}')

    async with asyncio.timeout(PATIENCE_S):
        while not (reply := await holdings(control)).containers:
            await asyncio.sleep(0.05)

    assert reply.readable
    assert "not a device checkpoint" in reply.problems[0]
    [one] = reply.containers
    assert (one.pod_name, one.device_ids, one.visible) == ("old", (B_0,), None)


async def test_an_adopted_container_restarts_and_its_end_is_reported(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await api_pods.create("old")
    uid = api_pods.uids["old"]
    old(kubelet, uid, machine=machine)
    cache = machine.hook / "containers" / f"{uid}_main"
    cache.mkdir(parents=True)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.prestart(B_0)
    assert "hamictl adopt" in (refused.value.details() or "")

    adopted = grant(uid, answered=True).model_copy(update={"pod_name": "old"})
    await control.announce(adopted)
    control.keep(adopted, "allocated")
    await control.until_all_is_consumed()

    await kubelet.prestart(B_0)
    await kubelet.prestart(B_0)
    assert list((machine.root / "state" / "limits").iterdir()) == []
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.allocate("unscheduled", "main", A_0)

    control.live.pop(uid)
    kubelet.forget(uid)
    await api_pods.delete("old")
    [report] = await eventually(lambda: control.reported("gone"))
    assert report.allocation_id == adopted.allocation_id
    await eventually(lambda: not cache.exists())


async def test_what_was_adopted_is_known_again_after_the_agents_state_was_lost(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    old(kubelet, "a", machine=machine)
    control.keep(grant("a", answered=True), "allocated")
    agent.stop()
    machine.state.unlink(missing_ok=True)

    agent.start()
    await agent.ready()

    await kubelet.prestart(B_0)


async def test_an_answer_that_shows_other_cards_than_were_adopted_does_not_start(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    old(kubelet, "a", machine=machine)
    await control.announce(grant("a", container(share(1)), answered=True))
    await control.until_all_is_consumed()

    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.prestart(B_0)


@pytest.fixture
def adopts(machine: Machine) -> None:
    """The setting under test; asked for before the agent starts."""
    machine.extra["HAMI_NODE_AGENT_UNMANAGED_PODS"] = "adopt"


class Scheduler:
    """What the scheduler answers to requests for unmanaged pods."""

    def __init__(self) -> None:
        self.asked: list[events.UnmanagedRequest] = []
        self.refusal = ""

    async def answer(self, _subject: str, body: bytes) -> events.UnmanagedReply:
        request = events.UnmanagedRequest.model_validate_json(body)
        self.asked.append(request)
        if self.refusal:
            return events.UnmanagedReply(node=NODE, refused=self.refusal)
        return events.UnmanagedReply(node=NODE, grant=granted(request))


def granted(request: events.UnmanagedRequest) -> Grant:
    containers = [
        container(
            *(share(CARDS.index(uuid), 1024 * (index + 1), 20) for uuid in one.uuids),
            name=one.container,
            index=index,
        )
        for index, one in enumerate(sorted(request.containers, key=lambda one: one.container))
    ]
    made = grant(request.pod_uid, *containers, token=7, answered=True)
    return made.model_copy(update={"pod_name": request.pod_name})


@pytest.fixture
async def scheduler(control: Control) -> Any:
    scheduler = Scheduler()
    serving = asyncio.create_task(
        control.bus.serve(events.unmanaged_subject(NODE), "scheduler", scheduler.answer)
    )
    yield scheduler
    serving.cancel()


@pytest.fixture
async def past(adopts: None, api_pods: ApiPods, agent: AgentProcess) -> str:
    """The uid of a pod that came past the scheduler."""
    await api_pods.create("past")
    return api_pods.uids["past"]


async def test_a_pod_past_the_scheduler_may_use_nothing_until_it_is_granted(
    past: str, kubelet: Kubelet, control: Control, scheduler: Scheduler
) -> None:
    answer = await kubelet.allocate(past, "main", A_0)

    assert "device" not in limits_of(answer)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARDS[0]
    assert not [name for name in answer.envs if "LIMIT" in name]

    await kubelet.prestart(A_0)

    [request] = scheduler.asked
    assert (request.pod_uid, request.pod_name) == (past, "past")
    assert request.containers == (events.TakenContainer(container="main", uuids=(CARDS[0],)),)
    assert f"device {CARDS[0]} memory_bytes {1024 * 2**20} core_percent 20" in limits_of(answer)
    [report] = await eventually(lambda: control.reported("allocated"))
    assert report.pod_uid == past
    await kubelet.prestart(A_0)
    assert len(scheduler.asked) == 1


async def test_all_containers_of_such_a_pod_get_their_limits_at_the_first_start(
    past: str, kubelet: Kubelet, scheduler: Scheduler
) -> None:
    first = await kubelet.allocate(past, "main", A_0)
    second = await kubelet.allocate(past, "other", B_0)

    await kubelet.prestart(B_0)

    assert f"device {CARDS[0]} memory_bytes {1024 * 2**20}" in limits_of(first)
    assert f"device {CARDS[1]} memory_bytes {2048 * 2**20}" in limits_of(second)
    await kubelet.prestart(A_0)
    assert len(scheduler.asked) == 1
    # The pod's grant waits for no Allocate: the next one is somebody else's.
    third = await kubelet.allocate("somebody", "main", A_1)
    assert mounts_of(third)["/etc/hami"] != mounts_of(first)["/etc/hami"]
    assert "device" not in limits_of(third)


async def test_a_pod_without_room_waits_with_the_schedulers_reason(
    past: str, api_pods: ApiPods, kubelet: Kubelet, scheduler: Scheduler
) -> None:
    scheduler.refusal = "the cards can't hold it: 1/1 CardInsufficientMemory"
    answer = await kubelet.allocate(past, "main", A_0)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.prestart(A_0)
    assert "CardInsufficientMemory" in (refused.value.details() or "")
    assert "device" not in limits_of(answer)
    messages = await api_pods.events("past")
    assert any("CardInsufficientMemory" in message for message in messages)

    scheduler.refusal = ""
    await kubelet.prestart(A_0)
    assert f"device {CARDS[0]}" in limits_of(answer)


async def test_the_roomiest_card_is_preferred_for_a_pod_that_nobody_knows(
    adopts: None, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    held = grant("a", container(share(0, 40960)))
    await control.announce(held)
    await control.until_all_is_consumed()
    await kubelet.allocate("a", "main", A_0)

    assert await kubelet.prefer(1, A_1, B_0) == [[B_0]]
