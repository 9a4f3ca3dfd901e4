"""`/v1/simulate` beside decisions."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hami_scheduler.bootstrap import simulating

from tests.integration.scheduler.world import World
from tests.unit.hamicommon.simulation.objects import asking, gpus, node
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

LARGE_BYTES = 8 << 20


async def test_the_ledger_is_asked_without_taking_anything(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")

    answer = await replica.http.post("/v1/simulate", json={"pod": asking(gpus(1, 500))})
    counted = await replica.http.post(
        "/v1/simulate", json={"pod": asking(gpus(1, 500)), "count": 3}
    )

    assert answer.json()["chosen"] == "n1"
    assert counted.json() == {"count": 3, "more": True, "nodes": {"n1": 3}}
    assert (await world.used(card))[0] == 0


async def test_a_mistake_is_answered_with_what_is_wrong(world: World) -> None:
    replica = await world.replica()

    answer = await replica.http.post("/v1/simulate", json={"pod": asking(gpus(1, 500)), "count": 0})

    assert answer.status_code == 400
    assert answer.json()["error"] == "count: a number from 1 to 100000 is wanted"


async def test_a_decision_waits_for_no_simulation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulating, "DEADLINE_S", PATIENCE_S)
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    nodes, length = [], 0
    while length < LARGE_BYTES:
        nodes.append(node(f"node-{len(nodes)}", {}))
        length += len(orjson.dumps(nodes[-1]))
    body = orjson.dumps({"pod": asking(gpus(1, 500)), "nodes": nodes})
    answer = asyncio.create_task(replica.http.post("/v1/simulate", content=body))
    await asyncio.sleep(0)

    for _ in range(5):
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]

    assert not answer.done()
    assert len((await answer).json()["nodes"]) == len(nodes)
