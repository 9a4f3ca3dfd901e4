"""Cards whose NVLinks contradict each other become one event for the operator."""

from __future__ import annotations

import asyncio

import pytest
from hami_node_agent.devices.topology import CardLinks
from hami_node_agent.inventory import publisher
from hami_node_agent.inventory.publisher import REASON, warn_of_links
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.shutdown import end

from tests.unit.node_agent.inventory.driver import A, B, Driver, tracker_of
from tests.waiting import PATIENCE_S


def one_sided() -> Driver:
    """Cards of which B does not see its links to A."""
    driver = Driver()
    driver.linked = (
        CardLinks(uuid=A, meetings={}, nvlinks={B: 4}),
        CardLinks(uuid=B, meetings={}, nvlinks={}),
    )
    return driver


class Node:
    """Takes events, after some refusals."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.events: list[tuple[str, str]] = []
        self.heard = asyncio.Event()

    async def warn(self, reason: str, message: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the API server is away")
        self.events.append((reason, message))
        self.heard.set()


@pytest.mark.parametrize("refusals", [0, 2], ids=["at once", "after the API server was away"])
async def test_a_one_sided_link_is_one_event_on_the_node(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "RETRY_FIRST_S", 0.01)
    node, cards = Node(refusals), await tracker_of(one_sided())
    warning = asyncio.ensure_future(warn_of_links(cards, node))

    async with asyncio.timeout(PATIENCE_S):
        await node.heard.wait()
    cards.changed.notify()
    await asyncio.sleep(0)
    await end([warning])

    [(reason, message)] = node.events
    assert reason == REASON
    assert A in message
    assert B in message


async def test_cards_that_agree_are_no_news() -> None:
    node, cards = Node(), await tracker_of(Driver())
    warning = asyncio.ensure_future(warn_of_links(cards, node))
    await asyncio.sleep(0)
    await end([warning])

    assert node.events == []


@pytest.mark.parametrize("error", [ValueError("odd"), InvalidRequest("no such node")])
async def test_pairs_around_a_poisonous_one_are_reported(error: Exception) -> None:
    class Odd(Node):
        async def warn(self, reason: str, message: str) -> None:
            if "poison" in message:
                raise error
            self.events.append((reason, message))
            if "last" in message:
                self.heard.set()

    node, cards = Odd(), await tracker_of(Driver())
    cards.contradictions = tuple((A, GpuUuid(other)) for other in ("first", "poison", "last"))
    warning = asyncio.create_task(warn_of_links(cards, node))
    heard = asyncio.create_task(node.heard.wait())

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([warning, heard], return_when=asyncio.FIRST_COMPLETED)
    assert not warning.done()
    await end([warning, heard])

    assert ["first" in text or "last" in text for _, text in node.events] == [True, True]
