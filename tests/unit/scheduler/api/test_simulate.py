"""`POST /v1/simulate`: the engine's answer on the live view, and on nodes that are given."""

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from hami_scheduler.api.http import answer_errors
from hami_scheduler.api.simulate import ClusterSimulator
from hami_scheduler.api.v1 import operator_routes
from hami_scheduler.bootstrap.simulating import read_view
from hamicommon.domain.requests import Policy

from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node, placed
from tests.unit.scheduler.ledger.test_cluster_state import Reader


async def ask(reader: Reader, body: object) -> tuple[int, Any]:
    view = await read_view(reader, every_vendor())
    simulator = ClusterSimulator(live=lambda: view, vendors=every_vendor(), defaults=Policy())

    async def simulated(text: bytes) -> bytes:
        return simulator.answer(text)

    app = FastAPI()
    answer_errors(app)
    app.include_router(operator_routes(cast(Any, SimpleNamespace(simulated=simulated))))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        content = body if isinstance(body, bytes) else None
        answer = await client.post(
            "/v1/simulate", content=content, json=None if content is not None else body
        )
    return answer.status_code, answer.json()


def ledger(nodes: int) -> Reader:
    """Nodes n000... with one card each, later ones with more memory granted."""
    reader = Reader()
    for number in range(nodes):
        reader.put(f"GPU-{number}", node=f"n{number:03}")
        reader.use(f"GPU-{number}", number)
    return reader


async def test_the_live_cluster_is_asked_and_nothing_is_taken() -> None:
    reader = ledger(3)
    body = {"pod": asking(gpus(1, 500))}
    status, answer = await ask(reader, body)

    assert status == 200
    assert answer["chosen"] == "n002"
    assert answer["nodes"].keys() == {"n000", "n001", "n002"}
    assert [card.version for card in reader.rows.values()] == [2, 2, 2]


async def test_more_nodes_than_are_asked_at_once_have_one_winner() -> None:
    status, answer = await ask(ledger(450), {"pod": asking(gpus(1, 500))})
    assert (status, answer["chosen"], len(answer["nodes"])) == (200, "n449", 450)


async def test_given_nodes_are_asked_in_place_of_the_live_ones() -> None:
    body = {
        "pod": asking(gpus(1, 7000)),
        "nodes": [node("a", {}), node("b", {})],
        "pods": [placed("GPU-a-0,NVIDIA,2000,0:;", on="a")],
    }
    status, answer = await ask(ledger(1), body)
    assert status == 200
    assert answer["chosen"] == "b"
    assert answer["nodes"]["a"] == {"fits": False, "reason": "1/1 CardInsufficientMemory"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param(b"{", "the body is not JSON", id="no JSON"),
        pytest.param([], "is wanted", id="a list"),
        pytest.param({"pod": 3}, "pod: a Pod object is wanted", id="no pod"),
        pytest.param({"pod": {}, "nodes": [3]}, "nodes: a list", id="no nodes"),
        pytest.param({"pod": {}, "nodes": [{}]}, "metadata.name", id="a nameless node"),
        pytest.param({"pod": {"spec": {"containers": 3}}}, "containers is 3", id="no list"),
        pytest.param({"pod": {"spec": {}}}, "the pod has no containers", id="no containers"),
    ],
)
async def test_mistakes_are_refused_with_what_is_wrong(body: object, sentence: str) -> None:
    status, answer = await ask(ledger(1), body)
    assert status == 400
    assert sentence in answer["error"]
