"""Handling of a binding whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hami_scheduler.extender.bind_steps import AgentOffers, PodBinding
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import AgentNotReady, GrantAnnouncer
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.grants.grant import grant_of

from tests.unit.scheduler.allocations import an_allocation


class LostAnswer:
    """Port PodApi: the pod is on its node by an earlier attempt; its annotations meet `error`."""

    def __init__(self, error: HamiError) -> None:
        self.error = error
        self.annotated: list[Mapping[str, str]] = []

    async def bind(self, *_: object, **__: object) -> None:
        raise Unavailable("no answer")

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        metadata = {"namespace": namespace, "name": name, "uid": ROW.pod_uid}
        return {"metadata": metadata, "spec": {"nodeName": ROW.node}}

    async def annotate(self, *_: object, annotations: Mapping[str, str], **__: object) -> None:
        self.annotated.append(annotations)
        raise self.error


ROW = an_allocation()


@pytest.mark.parametrize("error", [NotFound("pods p not found"), Unavailable("away")])
async def test_a_pod_that_was_on_its_node_is_bound_though_it_goes_before_its_annotations(
    error: HamiError,
) -> None:
    """Otherwise /bind would end the grant of a pod that may still run."""
    api: Any = LostAnswer(error)
    grant = grant_of(ROW, expires_at=datetime.now(UTC) + timedelta(minutes=1))

    await PodBinding(api, sign=lambda _: "signed").post(ROW, grant)

    assert len(api.annotated) == 1


# --- questions to agents before the first grant goes to their node


NODE = NodeName("n1")


class Announcer:
    """An agent that answers when it is let, and counts the questions."""

    def __init__(self, answer: bool | AgentNotReady | None) -> None:
        self.answer = answer
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def binds_late(self, node: NodeName) -> bool | None:
        """See the port."""
        assert node == NODE
        self.asked += 1
        await self.may_answer.wait()
        if isinstance(self.answer, AgentNotReady):
            raise self.answer
        return self.answer


def offers_of(announcer: Announcer, unanswered: list[NodeName]) -> AgentOffers:
    return AgentOffers(
        cast(GrantAnnouncer, announcer),
        on_unanswered=unanswered.append,
        instruments=SchedulerInstruments(),
    )


async def test_all_that_wait_for_a_node_ask_its_agent_once() -> None:
    announcer = Announcer(True)
    offers = offers_of(announcer, [])
    asking = [asyncio.create_task(offers.binds_late(NODE)) for _ in range(5)]
    await asyncio.sleep(0)  # each of them has asked
    asking[0].cancel()
    announcer.may_answer.set()

    answers = await asyncio.gather(*asking, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [True] * 4
    assert announcer.asked == 1


async def test_an_agent_that_can_take_no_pod_is_reported_and_asked_again() -> None:
    announcer = Announcer(AgentNotReady("its kubelet is away"))
    announcer.may_answer.set()
    unanswered: list[NodeName] = []
    offers = offers_of(announcer, unanswered)
    for _ in range(2):
        with pytest.raises(AgentNotReady, match="kubelet is away"):
            await offers.binds_late(NODE)

    assert unanswered == [NODE, NODE]
    assert announcer.asked == 2
