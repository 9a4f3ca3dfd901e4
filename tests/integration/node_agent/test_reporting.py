"""The agent's reports: its inventory, an event on an unscheduled pod, the trace of a grant."""

import json
import signal

import grpc
import pytest

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import CARDS, AgentProcess, Kubelet, Machine
from tests.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.native]

A_0 = f"{CARDS[0]}-0"
KILLS = 3


async def test_an_unscheduled_pod_gets_the_reason_in_an_event(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet
) -> None:
    await api_pods.create("unscheduled")
    for _ in range(KILLS):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.allocate(api_pods.uids["unscheduled"], "main", A_0)
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

    await kubelet.allocate("a", "main", A_0)

    [report] = await eventually(lambda: control.reported("allocated"))
    assert trace_id in report.traceparent
    agent.stop(signal.SIGTERM)
    spans = [json.loads(line) for line in (machine.root / "traces.jsonl").read_text().splitlines()]
    [span] = [span for span in spans if span["name"] == "allocate"]
    assert span["context"]["trace_id"] == f"0x{trace_id}"
    assert span["attributes"]["k8s.pod.uid"] == "a"
