"""Pods that HAMi started and pods that came past the scheduler, on a node of ours."""

import asyncio

import grpc
import pytest
from hamicommon import events
from hamicommon.errors import Unavailable

from tests.hami.answers import hami_answer
from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native

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
    [report] = await eventually(lambda: control.reports_of("gone"))
    assert report.allocation_id == adopted.allocation_id
    await eventually(lambda: not cache.exists())


async def test_what_was_adopted_is_known_again_after_the_agents_state_was_lost(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    old(kubelet, "a", machine=machine)
    control.keep(grant("a", answered=True), "allocated")
    agent.stop()
    machine.state.unlink(missing_ok=True)

    await agent.start_again()

    await kubelet.prestart(B_0)


async def test_an_answer_that_shows_other_cards_than_were_adopted_does_not_start(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    old(kubelet, "a", machine=machine)
    await control.announce(grant("a", container(share(1)), answered=True))
    await control.until_all_is_consumed()

    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.prestart(B_0)
