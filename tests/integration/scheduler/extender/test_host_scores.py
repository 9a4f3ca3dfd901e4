"""/prioritize-without-cards over HTTP: the answers to kube-scheduler for pods without cards."""

import json
from typing import Any

import pytest

from tests.integration.scheduler.operations.test_metrics import samples, value
from tests.integration.scheduler.world import GIB, Replica, World
from tests.waiting import eventually

Json = dict[str, Any]
ROUTE = "/prioritize-without-cards"
SECONDS = "hami_scheduler_host_score_seconds_count"
WHOLE_CARD = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100", "cpu": "4"}


def without_cards(cpu: str = "3", **spec: Any) -> Json:
    """Build a pod as kube-scheduler sends it; it does not exist in the cluster."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": "plain", "namespace": "default", "uid": "u-plain"},
        "spec": {"containers": [container], **spec},
    }


async def host_scores(replica: Replica, pod: Json, *nodes: str) -> dict[str, int]:
    answer = await replica.http.post(ROUTE, json={"pod": pod, "nodenames": list(nodes)})
    assert answer.status_code == 200
    return {one["Host"]: one["Score"] for one in answer.json()}


async def cpu(world: World, node: str, cores: int) -> None:
    """Report the node's cores as its kubelet does."""
    amounts = {"cpu": str(cores), "memory": "64Gi", "pods": "110"}
    await world.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": amounts}})


@pytest.fixture
async def replica(world: World) -> Replica:
    """A replica of three nodes with one card each; the card of `busy` is taken."""
    replica = await world.replica()
    for name in ("busy", "idle", "rich"):
        await world.add_node(name, memory_mib=8 * GIB)
    for name, cores in (("busy", 8), ("idle", 4), ("rich", 32)):
        await cpu(world, name, cores)
    pod = await world.pod("usual", limits=dict(WHOLE_CARD))
    assert (await replica.filter(pod, "busy"))["NodeNames"] == ["busy"]
    assert await replica.bind(pod, "busy") == ""
    return replica


async def test_pods_without_cards_leave_the_cpu_beside_idle_cards_alone(
    replica: Replica, world: World
) -> None:
    nodes = ("idle", "busy", "rich", "bare")

    async def is_learned() -> bool:
        return await host_scores(replica, without_cards(), *nodes) == {
            "bare": 10,
            "busy": 9,
            "rich": 9,
            "idle": 0,
        }

    await eventually(is_learned, "the usual pods to be known")

    # A pod placed there counts once the watch reports it.
    await world.api.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": "neighbour"},
            "spec": {**without_cards("28")["spec"], "nodeName": "rich"},
        },
    )

    async def has_counted() -> bool:
        return (await host_scores(replica, without_cards(), *nodes))["rich"] == 0

    await eventually(has_counted, "the neighbour's CPU to count")
    assert await host_scores(replica, without_cards("0"), *nodes) == {
        "bare": 10,
        "busy": 9,
        "rich": 9,
        "idle": 9,
    }


@pytest.mark.parametrize(
    "kind", ["limits", "claims"], ids=["by its limits", "perhaps, by its ResourceClaims"]
)
async def test_a_pod_that_gets_cards_is_answered_with_equal_scores(
    replica: Replica, world: World, kind: str
) -> None:
    pod = await world.pod("slice")
    if kind == "claims":
        pod = without_cards(resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}])

    assert await host_scores(replica, pod, "idle", "busy", "bare") == {
        "idle": 0,
        "busy": 0,
        "bare": 0,
    }
    found = await samples(replica)
    assert value(found, SECONDS, outcome="neutral") == 1
    assert value(found, SECONDS, outcome="scored") == 0


async def test_a_pod_that_is_scored_leaves_no_reservation_and_no_decision(
    replica: Replica, world: World
) -> None:
    decided = value(await samples(replica), "hami_scheduler_decisions_total")

    assert len(await host_scores(replica, without_cards(), "idle", "busy")) == 2

    found = await samples(replica)
    assert value(found, SECONDS, outcome="scored") == 1
    assert value(found, "hami_scheduler_decisions_total") == decided
    query = "SELECT 1 FROM allocations WHERE pod_uid = $1"
    assert await world.database.fetch(query, "u-plain") == []


async def test_whole_nodes_are_scored_by_their_names(replica: Replica) -> None:
    """A configuration without nodeCacheCapable."""
    items = [{"metadata": {"name": name}} for name in ("bare", "busy")]
    answer = await replica.http.post(
        ROUTE, json={"pod": without_cards(), "nodes": {"metadata": {}, "items": items}}
    )

    assert {one["Host"]: one["Score"] for one in answer.json()} == {"bare": 10, "busy": 9}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"pod": 7}', b'{"pod": {}, "nodenames": [1]}', b'{"pod": {}}']
)
async def test_what_can_not_be_read_is_answered_with_no_score(
    replica: Replica, body: bytes
) -> None:
    answer = await replica.http.post(ROUTE, content=body)

    assert answer.status_code == 200
    assert json.loads(answer.content) == []


async def test_without_the_hosts_cpu_all_nodes_with_cards_are_equal(world: World) -> None:
    replica = await world.replica(host_cpu_in_score=False)
    for name, cores in (("a", 4), ("b", 64)):
        await world.add_node(name)
        await cpu(world, name, cores)

    async def equal() -> bool:
        scores = await host_scores(replica, without_cards("4"), "a", "b", "bare")
        return scores == {"a": 9, "b": 9, "bare": 10}

    await eventually(equal, "the cards of both to be known")
