"""The extender protocol, over real HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubelocal.kubescheduler.cluster import KnownCluster, Node
from kubelocal.kubescheduler.configuration import ExtenderConfig, ManagedResource
from kubelocal.kubescheduler.cycle import Decider, NoFit
from kubelocal.kubescheduler.extender import Extender, ExtenderError, open_extender

from tests.unit.kubelocal.kubescheduler.objects import a_node, a_pod

Answer = Callable[[str, dict[str, Any]], Any]


@asynccontextmanager
async def an_extender(answer: Answer, **config: Any) -> AsyncIterator[Extender]:
    """A server that answers with `answer(verb, body)`, and the client of it."""

    async def handle(request: web.Request) -> web.Response:
        result = answer(request.path.strip("/"), await request.json())
        if isinstance(result, web.Response):
            return result
        return web.Response(body=orjson.dumps(result), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{verb}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    defaults = {"filter_verb": "filter", "bind_verb": "bind", "node_cache_capable": True}
    try:
        settings = ExtenderConfig(url_prefix=url, **(defaults | config))
        async with open_extender(settings) as extender:
            yield extender
    finally:
        await runner.cleanup()


def nodes(*names: str) -> list[Node]:
    cluster = KnownCluster()
    for name in names:
        cluster.set_node(a_node(name))
    return cluster.nodes()


async def test_filter_sends_names_when_the_extender_caches_nodes() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(verb: str, body: dict[str, Any]) -> Any:
        bodies.append(body)
        return {"NodeNames": ["b"], "FailedNodes": {"a": "no card"}, "Error": ""}

    async with an_extender(answer) as extender:
        result = await extender.filter(a_pod(), nodes("a", "b"))
    assert (result.kept, result.failed) == (("b",), {"a": "no card"})
    assert list(bodies[0]) == ["Pod", "Nodes", "NodeNames"]
    assert bodies[0]["NodeNames"] == ["a", "b"]
    assert bodies[0]["Nodes"] is None


async def test_filter_sends_nodes_when_it_does_not() -> None:
    def answer(verb: str, body: dict[str, Any]) -> Any:
        assert body["NodeNames"] is None
        return {"Nodes": {"items": body["Nodes"]["items"][:1]}}

    async with an_extender(answer, node_cache_capable=False) as extender:
        result = await extender.filter(a_pod(), nodes("a", "b"))
    assert result.kept == ("a",)


async def test_answers_are_read_in_any_case() -> None:
    answer = {"nodenames": ["a"], "failedAndUnresolvableNodes": {"b": "wrong type"}}
    async with an_extender(lambda *_: answer) as extender:
        result = await extender.filter(a_pod(), nodes("a", "b"))
    assert (result.kept, result.failed) == (("a",), {"b": "wrong type"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"Error": "ledger away"}, "ledger away"),
        ({"NodeNames": ["ghost"]}, 'claims a filtered node "ghost" which is not found'),
        (web.Response(status=500), "failed filter with extender at URL .*/filter, code 500"),
        (web.Response(text="<html>"), "answers no JSON"),
    ],
    ids=["error", "unknown node", "status 500", "no JSON"],
)
async def test_an_answer_that_is_none_is_an_error(answer: Any, message: str) -> None:
    async with an_extender(lambda *_: answer) as extender:
        with pytest.raises(ExtenderError, match=message):
            await extender.filter(a_pod(), nodes("a"))


async def test_an_extender_that_is_away_is_an_error_with_its_address() -> None:
    async with an_extender(lambda *_: {}) as extender:
        gone = extender
    async with open_extender(gone.config) as client:
        with pytest.raises(ExtenderError, match=r"Post .*/filter.: .+"):
            await client.filter(a_pod(), nodes("a"))


async def test_bind_sends_the_pod_and_the_node() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(verb: str, body: dict[str, Any]) -> Any:
        bodies.append(body)
        return {"Error": "" if body["Node"] == "a" else "locked"}

    async with an_extender(answer) as extender:
        await extender.bind(a_pod(), "a")
        with pytest.raises(ExtenderError, match="locked"):
            await extender.bind(a_pod(), "b")
    assert bodies[0] == {
        "PodName": "p1",
        "PodNamespace": "default",
        "PodUID": "uid-p1",
        "Node": "a",
    }


async def test_an_extender_cares_only_for_pods_with_its_resources() -> None:
    managed = [ManagedResource(name="nvidia.com/gpu", ignored_by_scheduler=True)]
    async with an_extender(lambda *_: {}, managed_resources=managed) as extender:
        assert not extender.is_interested(a_pod())
        assert extender.is_interested(a_pod(requests={"nvidia.com/gpu": "1"}))
        assert extender.ignored_resources == {"nvidia.com/gpu"}


def a_cluster(*names: str, **fields: Any) -> KnownCluster:
    cluster = KnownCluster()
    for name in names:
        cluster.set_node(a_node(name, **fields))
    return cluster


async def test_the_reasons_of_both_are_counted_in_one_sentence() -> None:
    cluster = a_cluster("a", "b")
    cluster.set_node(a_node("c", unschedulable=True))
    answer = {"NodeNames": [], "FailedNodes": {"a": "no card", "b": "no card"}}
    async with an_extender(lambda *_: answer) as extender:
        with pytest.raises(NoFit) as refusal:
            await Decider(cluster, [extender]).choose(a_pod())
    assert str(refusal.value) == (
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 no card."
    )


async def test_an_extender_is_not_asked_when_nothing_fits_anyway() -> None:
    def answer(verb: str, body: dict[str, Any]) -> Any:
        raise AssertionError("asked")

    async with an_extender(answer) as extender:
        with pytest.raises(NoFit, match=r"0/1 nodes are available: 1 Insufficient cpu"):
            await Decider(a_cluster("a"), [extender]).choose(a_pod(requests={"cpu": "5"}))


async def test_without_any_node_the_sentence_is_kube_schedulers() -> None:
    with pytest.raises(NoFit, match=r"^no nodes available to schedule pods$"):
        await Decider(KnownCluster(), []).choose(a_pod())


async def test_an_extender_that_may_be_ignored_is_skipped_when_it_fails() -> None:
    def failing(*_: Any) -> web.Response:
        return web.Response(status=500)

    async with an_extender(failing, ignorable=True) as extender:
        assert await Decider(a_cluster("a"), [extender]).choose(a_pod()) == "a"
    async with an_extender(failing) as extender:
        with pytest.raises(ExtenderError, match="code 500"):
            await Decider(a_cluster("a"), [extender]).choose(a_pod())


async def test_prioritize_decides_among_equals_and_is_not_needed_for_one_node() -> None:
    asked: list[str] = []

    def answer(verb: str, body: dict[str, Any]) -> Any:
        asked.append(verb)
        if verb == "filter":
            return {"NodeNames": body["NodeNames"]}
        return [{"host": name, "score": 10 if name == "b" else 0} for name in body["NodeNames"]]

    async with an_extender(answer, prioritize_verb="prioritize") as extender:
        assert await Decider(a_cluster("a", "b", "c"), [extender]).choose(a_pod()) == "b"
        assert await Decider(a_cluster("a"), [extender]).choose(a_pod()) == "a"
    assert asked == ["filter", "prioritize", "filter"]


async def test_cycles_begin_where_the_last_one_ended() -> None:
    decider = Decider(a_cluster(*(f"n{number:03}" for number in range(150))), [])
    assert [await decider.choose(a_pod()) for _ in range(3)] == ["n000", "n100", "n050"]
