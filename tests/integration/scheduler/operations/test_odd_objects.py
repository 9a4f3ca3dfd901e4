"""Odd objects end no loop, and simulations stop no decision."""

import asyncio
import itertools
import json
import uuid
from typing import Any

import orjson
import pytest
from hami_scheduler.bootstrap import simulating
from hamicommon import events
from hamicommon.k8s import annotations, pod_annotations

from tests.integration.scheduler.world import World
from tests.unit.hamicommon.simulation.objects import asking, gpus, node
from tests.waiting import PATIENCE_S, eventually

AMOUNTS = (
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "8E",
    "9e18",
    "1e30",
    "100000E",
    "1k",
    "3000000000",
)
"""Quantities that the API server takes for a resource of ours."""
NAMES = ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")


async def still_serves(world: World, replica: Any, node: str) -> None:
    pod = await world.pod("plain")
    answer = await replica.filter(pod, node)
    assert answer["NodeNames"] == [node], answer


async def test_quotas_of_any_amount_are_limits_or_none(world: World) -> None:
    replica, _ = await world.replica_with_card()
    path = "/api/v1/namespaces/default/resourcequotas"
    made = []
    for number, amount in enumerate(AMOUNTS[1:]):
        hard = {f"limits.nvidia.com/{name}": amount for name in ("gpumem", "gpucores")}
        hard["limits.huawei.com/Ascend910B3-memory"] = amount
        metadata = {"name": f"odd-{number}"}
        made.append(await world.api.create(path, {"metadata": metadata, "spec": {"hard": hard}}))
    try:

        async def is_limited() -> bool:
            row = await world.database.fetchrow(
                "SELECT limit_amount FROM quotas WHERE resource = 'nvidia.com/gpumem'"
            )
            return row is not None and row[0] == 1000

        await eventually(is_limited, "the strictest limit")
    finally:
        for quota in made:
            await world.api.delete(f"{path}/{quota['metadata']['name']}")

    async def is_unlimited() -> bool:
        rows = await world.database.fetch("SELECT 1 FROM quotas WHERE limit_amount IS NOT NULL")
        return not rows

    await eventually(is_unlimited, "the limits to go")
    await still_serves(world, replica, "n1")


async def test_a_pod_that_asks_for_any_amount_is_answered(world: World) -> None:
    replica, _ = await world.replica_with_card()
    await world.add_node("n2")

    for name, amount in itertools.product(NAMES, AMOUNTS):
        pod = await world.pod("odd", limits={"nvidia.com/gpu": "1", f"nvidia.com/{name}": amount})
        answer = await replica.filter(pod, "n1")
        refused = answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]
        assert answer["NodeNames"] or refused or f"nvidia.com/{name}" in answer["Error"], answer
        await world.delete(pod)

    await still_serves(world, replica, "n2")


NUL = "A\0B"
"""JSON and Kubernetes' annotations may hold it, PostgreSQL's text may not."""
KEYS = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gpuuuid",
    pod_annotations.GPU_POLICY.name,
    pod_annotations.SCORING_WEIGHTS.name,
    pod_annotations.NVIDIA_MODE.name,
    annotations.TRACEPARENT,
    annotations.NVIDIA_ALLOCATED,
)


async def test_a_pod_whose_annotation_has_a_nul_is_answered(world: World) -> None:
    replica, _ = await world.replica_with_card()
    for key in KEYS:
        pod = await world.pod("nul", annotations={key: NUL})

        answer = await replica.filter(pod, "n1")

        assert answer["Error"] or answer["NodeNames"] or answer["FailedNodes"], (key, answer)

    async def is_recorded() -> bool:
        rows = await world.database.fetch("SELECT count(DISTINCT pod_uid) FROM decisions")
        return int(rows[0][0]) == len(KEYS)

    await eventually(is_recorded, "every decision to be recorded")
    await still_serves(world, replica, "n1")


async def test_the_cards_of_a_node_whose_annotation_has_a_nul_are_known(world: World) -> None:
    replica, _ = await world.replica_with_card()
    name = f"nul-{uuid.uuid4().hex[:6]}"
    card = {"id": f"GPU-{name}", "count": 10, "devmem": 40960, "devcore": 100, "type": NUL}
    register = json.dumps([{**card, "health": True, "mode": "hami-core", "index": 0, "numa": 0}])
    await world.api.create(
        "/api/v1/nodes",
        {
            "metadata": {"name": name, "annotations": {annotations.NVIDIA_REGISTER: register}},
            "status": {
                "allocatable": {"nvidia.com/gpu": "10"},
                "capacity": {"nvidia.com/gpu": "10"},
            },
        },
    )

    async def is_known() -> bool:
        rows = await world.database.fetch("SELECT type FROM devices WHERE node = $1", name)
        return [row["type"] for row in rows] == ["A\ufffdB"]

    await eventually(is_known, "the card")
    await still_serves(world, replica, "n1")


async def test_a_reason_with_a_nul_is_kept_and_shown(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("fails")
    await replica.filter(pod, "n1")
    await replica.bind(pod, "n1")

    await world.publish_report(events.AllocateFailed, await world.until(pod, "bound"), reason=NUL)

    async def is_kept() -> bool:
        return [row["reason"] for row in await world.rows(pod)] == ["A\ufffdB"]

    await eventually(is_kept, "the reason")
    await still_serves(world, replica, "n1")


LONG = "a," * 100_000
"""Near to the 256 KiB that the API server allows a pod's annotations."""


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", annotations.TRACEPARENT, "own"])
@pytest.mark.parametrize("value", [NUL, LONG, "\N{REPLACEMENT CHARACTER}" * 1000], ids=len)
async def test_a_pod_of_odd_text_is_bound_or_refused_and_others_are_bound_beside_it(
    world: World, key: str, value: str
) -> None:
    replica, _ = await world.replica_with_card()
    world.late.add("n1")  # so that none waits for another's lock
    odd = await world.pod("odd", annotations={key: value})
    plain = [await world.pod("plain") for _ in range(3)]
    placed = []
    for pod in (plain[0], odd, *plain[1:]):
        answer = await replica.filter(pod, "n1")
        refused = answer["FailedNodes"] or answer["Error"]
        if pod is odd and refused:
            assert all((refused if isinstance(refused, dict) else {"": refused}).values())
        else:
            assert answer["NodeNames"] == ["n1"], answer
            placed.append(pod)

    given = await asyncio.gather(*(replica.bind(pod, "n1") for pod in placed))

    assert [text for pod, text in zip(placed, given, strict=True) if pod is not odd] == [""] * 3
    for pod in plain:
        assert (await world.read(pod))["spec"]["nodeName"] == "n1"


NO_TEXT = {
    "half a character": b'"\\ud800"',
    "no UTF-8": b'"\xff"',
    "a mebibyte": b'"' + b"a" * (1 << 20) + b'"',
}


async def test_a_call_that_is_no_text_is_answered_with_a_sentence(world: World) -> None:
    replica, _ = await world.replica_with_card()

    for verb, (name, text) in itertools.product(("filter", "bind"), NO_TEXT.items()):
        body = b'{"podName": %s, "pod": {"metadata": {"name": %s}}}' % (text, text)
        answer = await replica.http.post(f"/{verb}", content=body)

        assert answer.json()["Error"].strip(), (verb, name, answer.text)
    await still_serves(world, replica, "n1")


LARGE_BYTES = 8 << 20


async def test_the_ledger_is_asked_without_taking_anything(world: World) -> None:
    replica, card = await world.replica_with_card()

    answer = await replica.http.post("/v1/simulate", json={"pod": asking(gpus(1, 500))})
    counted = await replica.http.post(
        "/v1/simulate", json={"pod": asking(gpus(1, 500)), "count": 3}
    )

    assert answer.json()["chosen"] == "n1"
    assert counted.json() == {"count": 3, "more": True, "nodes": {"n1": 3}, "closed": {}}
    assert (await world.used_amounts(card))[0] == 0


async def test_given_nodes_are_filtered_in_a_simulation_only(world: World) -> None:
    replica, card = await world.replica_with_card()
    pod, names = await world.pod("asked"), ("n1", "template")
    body = {"pod": pod, "nodes": {"items": [node(names[0], {"devmem": 1}), node(names[1], {})]}}

    simulated = (await replica.http.post("/filter-simulation", json=body)).json()
    filtered = (await replica.http.post("/filter", json=body)).json()

    assert [each["metadata"]["name"] for each in simulated["Nodes"]["items"]] == ["template"]
    assert simulated["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
    assert filtered["Nodes"] is None
    assert filtered["Error"] == (
        "expected names of nodes (nodeCacheCapable: true); /filter-simulation takes whole Node "
        "objects"
    )
    assert await world.rows(pod) == []
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_mistake_is_answered_with_what_is_wrong(world: World) -> None:
    replica = await world.replica()

    answer = await replica.http.post("/v1/simulate", json={"pod": asking(gpus(1, 500)), "count": 0})

    assert answer.status_code == 400
    assert answer.json()["error"] == "count: expected a number from 1 to 100000"


async def test_a_decision_waits_for_no_simulation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulating, "DEADLINE_S", PATIENCE_S)
    replica, _ = await world.replica_with_card()
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
