"""Nodes are asked for by placeholders, and wishes end as they should; the test plays autoscaler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hami_scheduler.bootstrap import simulating
from hami_scheduler.bootstrap.simulating import Simulations
from hami_scheduler.scaling import loop
from hami_scheduler.scaling.planning import ScaleAnswer, ScaleQuestion
from hamicommon.errors import Conflict, NotFound
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import Replica, World, inventory_device
from tests.waiting import eventually

pytestmark = pytest.mark.integration

NAMESPACE, POOL = "hami-system", {"pool": "a100"}
TYPE = {
    "name": "a100x4",
    "selector": POOL,
    "cards": [{"count": 4, "type": "NVIDIA A100-SXM4-80GB", "memory": 80 * 1024}],
}
OTHER = TYPE | {"name": "dear", "price": 100, "selector": {"pool": "dear"}}
WISHES = "SELECT type, number, state, node, reason, cardinality(pods) AS pods FROM scale_wishes"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PLAN_INTERVAL_S", 0.2)
    monkeypatch.setattr(loop, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(loop, "TYPES_INTERVAL_S", 0.2)

    async def scale(self: Simulations, question: ScaleQuestion) -> ScaleAnswer:
        return await asyncio.to_thread(simulating.scale, question, self._settings)

    # In this process: another one starts for seconds, which each replica would need.
    monkeypatch.setattr(Simulations, "scale", scale)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings of a replica that asks for nodes."""
    file = tmp_path / "types.yaml"
    file.write_text(yaml.safe_dump([TYPE, OTHER]))
    return {
        "scale": "on",
        "scale_after_s": 0.01,
        "scale_types_file": file,
        "scale_image": "pause",
        "scale_group_labels": "group",
    }


@pytest.fixture
async def rig(world: World) -> AsyncIterator[World]:
    for path, name, more in (
        ("/api/v1/namespaces", NAMESPACE, {}),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", "hami-placeholder", {"value": -1}),
    ):
        with contextlib.suppress(Conflict):
            await world.api.create(path, {"metadata": {"name": name}, **more})
    yield world

    async def are_gone() -> bool:
        # A replica that still runs makes them for the pods that wait.
        for pod in (await world.api.get("/api/v1/pods"))["items"]:
            with contextlib.suppress(NotFound):
                await world.delete(pod)
        rows = await wishes(world)
        return await placeholders(world) == [] and all(
            row["state"] not in ("wanted", "asked") for row in rows
        )

    if world.replicas:
        await eventually(are_gone, "the placeholders to go")


async def waiting(world: World, count: int, memory_mib: int = 60 * 1024) -> list[Json]:
    """Pods that kube-scheduler has given up; one fits on a card."""
    pods = [await world.pod("waits", memory_mib=memory_mib) for _ in range(count)]
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for pod in pods:
        await world.set_status(pod, conditions=[refused])
    return pods


async def wishes(world: World) -> list[Json]:
    return [dict(row) for row in await world.database.fetch(f"{WISHES} ORDER BY id")]


async def placeholders(world: World) -> list[Json]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    found: list[Json] = (await world.api.get(path, labelSelector="hami.io/placeholder"))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


async def wait_for_placeholders(world: World, count: int) -> list[Json]:
    """The placeholders, once there are so many and the ledger knows it."""

    async def there() -> list[Json] | None:
        found, rows = await placeholders(world), await wishes(world)
        known = sum(row["state"] == "asked" for row in rows)
        return found if len(found) == known == count else None

    return await eventually(there, f"{count} placeholders")


async def until(world: World, *states: str) -> list[Json]:
    """The wishes, once they have come to these states."""

    async def rows_in_states() -> list[Json] | None:
        rows = await wishes(world)
        return rows if [row["state"] for row in rows] == list(states) else None

    return await eventually(rows_in_states, f"the wishes to be {states}")


async def join(
    world: World, name: str, placeholder: Json | None = None, *, cards: int = 4, **card: Any
) -> None:
    """Let a node of the pool come, with the placeholder on it."""
    await world.api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": POOL}})
    if placeholder is not None:
        await bind(world, placeholder, name)
    uuids = [f"GPU-{name}-{index}" for index in range(cards)]
    await world.report(name, *[inventory_device(u, i, **card) for i, u in enumerate(uuids)])


async def bind(world: World, placeholder: Json, node: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{placeholder['metadata']['name']}/binding"
    target = {"target": {"kind": "Node", "name": node}}
    await world.api.create(path, {"metadata": {"name": placeholder["metadata"]["name"]}, **target})


async def events_of(world: World, pod: Json, reason: str) -> list[str]:
    found = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
    uid = pod["metadata"]["uid"]
    return [
        each["message"]
        for each in found
        if each["involvedObject"]["uid"] == uid and each["reason"] == reason
    ]


async def read_notes(replica: Replica, pod: Json) -> list[str]:
    metadata = pod["metadata"]
    path = f"/v1/pods/{metadata['uid']}/explain"
    answer = await replica.get(f"{path}?namespace=default&name={metadata['name']}")
    return list(answer["notes"])


async def test_a_node_is_asked_for_and_comes(rig: World, settings: dict[str, Any]) -> None:
    replica = await rig.replica(**settings)
    pods = await waiting(rig, 7)

    first, second = await wait_for_placeholders(rig, 2)

    assert [pod["metadata"]["name"] for pod in (first, second)] == [
        "hami-scale-a100x4-1",
        "hami-scale-a100x4-2",
    ]
    assert first["spec"]["nodeSelector"] == POOL

    async def is_for_all() -> bool:
        return sum(row["pods"] for row in await wishes(rig)) == 7

    await eventually(is_for_all, "all pods to be planned")
    sentence = "2 nodes of a100x4 requested; this pod is 1 of 7 waiting pods"
    assert sentence in await read_notes(replica, pods[0])
    await eventually(lambda: events_of(rig, pods[0], "NodeAskedFor"), "the event")

    await join(rig, "new", first)
    await until(rig, "arrived", "asked")

    [left] = await wait_for_placeholders(rig, 1)
    assert left["metadata"]["name"] == "hami-scale-a100x4-2"

    async def woken() -> bool:
        annotations = [(await rig.read(pod))["metadata"].get("annotations") for pod in pods]
        return sum("hami.io/retry-at" in (each or {}) for each in annotations) >= 4

    await eventually(woken, "the pods that fit to be tried again")


async def test_a_node_that_brings_its_cards_first_is_kept_for_its_placeholder(
    rig: World, settings: dict[str, Any]
) -> None:
    replica = await rig.replica(**settings)
    pods = await waiting(rig, 1)
    await wait_for_placeholders(rig, 1)

    await rig.api.create("/api/v1/nodes", {"metadata": {"name": "new", "labels": POOL}})
    await rig.api.create("/api/v1/nodes", {"metadata": {"name": "other"}})

    async def is_kept() -> bool:
        answer = await replica.filter(await rig.read(pods[0]), "new", "other")
        return set(answer["FailedNodes"]) == {"other"}

    await eventually(is_kept, "the node to be kept")
    await rig.report("new", *[inventory_device(f"GPU-new-{i}", i) for i in range(4)])
    [row] = await until(rig, "arrived")

    assert row["node"] == "new"
    await eventually(lambda: is_empty(rig), "the placeholder to go")
    answer = await replica.filter(await rig.read(pods[0]), "new", "other")
    assert answer["NodeNames"] == ["new"]


async def _true(what: bool) -> bool:
    return what


async def test_a_placeholder_on_a_node_that_another_wish_got_is_made_again(
    rig: World, settings: dict[str, Any]
) -> None:
    await rig.replica(**settings)
    await waiting(rig, 7)
    await wait_for_placeholders(rig, 2)
    await join(rig, "new")
    # Whichever request is looked at first gets it.
    [left] = await wait_for_placeholders(rig, 1)

    await bind(rig, left, "new")

    async def made_again() -> Json | None:
        found = await placeholders(rig)
        return found[0] if len(found) == 1 and found[0]["spec"].get("nodeName") is None else None

    again = await eventually(made_again, "another placeholder")
    affinity = again["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["new"]


async def test_a_plan_that_ends_after_a_wish_drops_no_other(
    rig: World, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice a plan finds a wish idle because a node has come: the second is out of date."""
    keep, plan = loop.Scaler.keep, Simulations.scale
    is_looking, is_over = asyncio.Event(), asyncio.Event()
    is_looking.set()
    found_idle = 0

    async def wait_and_keep(self: loop.Scaler) -> None:
        await is_looking.wait()
        await keep(self)

    async def scale(self: Simulations, question: ScaleQuestion) -> ScaleAnswer:
        nonlocal found_idle
        answer = await plan(self, question)
        if len(question.coming) == 2 and set(question.coming) - set(answer.plan.placed.values()):
            found_idle += 1
            if found_idle == 2:
                is_looking.set()
                await wait_for_placeholders(rig, 1)
        elif found_idle == 2:
            is_over.set()
        return answer

    monkeypatch.setattr(loop.Scaler, "keep", wait_and_keep)
    monkeypatch.setattr(Simulations, "scale", scale)
    await rig.replica(**settings)
    await waiting(rig, 7)
    await wait_for_placeholders(rig, 2)

    is_looking.clear()
    await join(rig, "early")  # Pods go to it before they go to a node that is to come.
    await asyncio.wait_for(is_over.wait(), 60)

    assert sorted(row["state"] for row in await wishes(rig)) == ["arrived", "asked"]


async def test_a_second_node_of_karpenter_is_asked_for_by_our_label(
    rig: World, settings: dict[str, Any]
) -> None:
    labels = {**POOL, "karpenter.sh/nodepool": "a100"}
    await rig.api.create("/api/v1/nodes", {"metadata": {"name": "first", "labels": labels}})
    replica = await rig.replica(**settings)
    await rig.report("first", inventory_device("GPU-first", 0, memory_mib=20 * 1024))
    await eventually(lambda: _true(len(replica.cards("first")) == 1), "its card")
    await waiting(rig, 1)

    [placeholder] = await wait_for_placeholders(rig, 1)

    affinity = placeholder["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [excluded] = term["matchExpressions"]
    assert (excluded["key"], excluded["values"]) == ("hami.io/hostname", ["first"])
    first = await rig.api.get("/api/v1/nodes/first")
    assert first["metadata"]["labels"] == labels | {"hami.io/hostname": "first"}


@pytest.mark.parametrize("jump", ["10 minutes", "-10 minutes"])
async def test_a_clock_that_jumps_ends_no_wish_and_hides_no_node(
    rig: World, settings: dict[str, Any], jump: str
) -> None:
    """Postgres's clock; our own wall clock decides nothing."""
    await rig.replica(**settings)
    await waiting(rig, 1)
    await wait_for_placeholders(rig, 1)
    await rig.database.fetch(
        f"UPDATE scale_wishes SET wanted_at = wanted_at + interval '{jump}', asked_at = NULL"
    )

    # Looked at again since the jump.
    await wait_for_placeholders(rig, 1)
    await join(rig, "new")

    [row] = await until(rig, "arrived")
    assert row["node"] == "new"


async def test_a_node_from_just_before_is_not_taken_for_the_one_that_is_wanted(
    rig: World, settings: dict[str, Any]
) -> None:
    replica = await rig.replica(**settings)
    await join(rig, "small", memory_mib=20 * 1024)
    await eventually(lambda: _true(len(replica.cards("small")) == 4), "its cards")
    await waiting(rig, 1)
    await wait_for_placeholders(rig, 1)

    await join(rig, "new")

    [row] = await until(rig, "arrived")
    assert (row["node"], row["reason"]) == ("new", "")


@pytest.mark.parametrize(
    ("cards", "card"),
    [
        pytest.param(3, {}, id="three of four cards"),
        pytest.param(4, {"type": "NVIDIA A10"}, id="another model"),
        pytest.param(4, {"memory_mib": 40 * 1024}, id="less memory"),
    ],
)
async def test_a_node_with_other_cards_is_drift_and_its_type_used_no_more(
    rig: World, settings: dict[str, Any], cards: int, card: dict[str, Any]
) -> None:
    await rig.replica(**settings)
    await waiting(rig, 1)
    [placeholder] = await wait_for_placeholders(rig, 1)

    await join(rig, "odd", placeholder, cards=cards, **card)
    [row] = await until(rig, "arrived")

    assert row["reason"].endswith("in place of 4 x NVIDIA A100-SXM4-80GB of 81920 MiB")
    found = await rig.database.fetch("SELECT subject FROM drift_journal WHERE class = 'node-type'")
    assert [each["subject"] for each in found] == ["a100x4"]
    await waiting(rig, 16)
    [_, after, *_] = await eventually(lambda: _wishes(rig, 2), "the next wish")
    assert after["type"] == "dear"


async def _wishes(world: World, least: int) -> list[Json] | None:
    rows = await wishes(world)
    return rows if len(rows) >= least else None


async def test_a_node_that_never_comes_is_given_up_for_the_next_type(
    rig: World, settings: dict[str, Any]
) -> None:
    await rig.replica(**settings, scale_timeout_s=1.5)
    [pod] = await waiting(rig, 1)
    [placeholder] = await wait_for_placeholders(rig, 1)
    # The later one is about an earlier placeholder of that name.
    for uid, message, at in (
        (placeholder["metadata"]["uid"], "1 max node group size reached", "2026-11-01T00:00:00Z"),
        ("earlier", "pod triggered scale-up", "2026-11-01T00:00:01Z"),
    ):
        await rig.api.create(
            f"/api/v1/namespaces/{NAMESPACE}/events",
            {
                "metadata": {"generateName": "reported-", "namespace": NAMESPACE},
                "involvedObject": {
                    "kind": "Pod",
                    "namespace": NAMESPACE,
                    "name": placeholder["metadata"]["name"],
                    "uid": uid,
                },
                "reason": "Reported",
                "message": message,
                "source": {"component": "cluster-autoscaler"},
                "lastTimestamp": at,
            },
        )

    rows = await eventually(lambda: _wishes(rig, 2), "the next type")

    assert (rows[0]["type"], rows[0]["state"]) == ("a100x4", "given-up")
    assert rows[0]["reason"] == "no node joined within 1.5 s: 1 max node group size reached"
    assert rows[1]["type"] == "dear"
    [message] = await eventually(lambda: events_of(rig, pod, "NodeGivenUp"), "the event")
    assert message.startswith("no longer waiting for a node of a100x4: no node joined within 1.5 s")


async def test_a_wish_is_dropped_with_the_pod_that_it_was_for(
    rig: World, settings: dict[str, Any]
) -> None:
    await rig.replica(**settings)
    [pod] = await waiting(rig, 1)
    await wait_for_placeholders(rig, 1)

    await rig.delete(pod)

    [row] = await until(rig, "dropped")
    assert row["reason"] == "no pod needs it any more"
    await eventually(lambda: is_empty(rig), "the placeholder to go")


async def test_two_schedulers_ask_for_no_node_twice(rig: World, settings: dict[str, Any]) -> None:
    for _ in range(2):
        await rig.replica(**settings)
    await waiting(rig, 7)

    await wait_for_placeholders(rig, 2)
    # Both have planned again by then.
    await waiting(rig, 8)
    await wait_for_placeholders(rig, 4)

    assert [row["number"] for row in await wishes(rig)] == [1, 2, 3, 4]


async def test_what_a_killed_scheduler_left_is_taken_up(
    rig: World, settings: dict[str, Any]
) -> None:
    """Killed between a placeholder and its row, and between a row's end and its placeholder's."""
    pods = await waiting(rig, 1)
    number = await rig.database.fetchrow(
        "INSERT INTO scale_wishes (type, number, pods, cpu_milli, memory_mib)"
        " VALUES ('a100x4', 1, $1, 0, 0) RETURNING id",
        [pods[0]["metadata"]["uid"]],
    )
    for name, wish in (("hami-scale-a100x4-1", number["id"]), ("hami-scale-a100x4-7", 7777)):
        await left_behind(rig, name, wish)
    left, _ = await placeholders(rig)

    await rig.replica(**settings)

    [kept] = await wait_for_placeholders(rig, 1)
    assert kept["metadata"]["uid"] == left["metadata"]["uid"]
    assert len(await wishes(rig)) == 1


async def test_a_placeholder_that_is_refused_is_made_later(
    rig: World, settings: dict[str, Any]
) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await rig.api.delete(f"{path}/hami-placeholder")
    await rig.replica(**settings)
    await waiting(rig, 1)

    async def has_reason() -> bool:
        rows = await wishes(rig)
        return bool(rows) and "hami-placeholder" in rows[0]["reason"]

    await eventually(has_reason, "the reason why it is not there")
    await rig.api.create(path, {"metadata": {"name": "hami-placeholder"}, "value": -1})

    await wait_for_placeholders(rig, 1)


async def test_a_plan_alone_asks_for_nothing_and_takes_back(
    rig: World, settings: dict[str, Any]
) -> None:
    [pod] = await waiting(rig, 1)
    number = await rig.database.fetchrow(
        "INSERT INTO scale_wishes (type, number, pods, cpu_milli, memory_mib, state, asked_at)"
        " VALUES ('a100x4', 1, $1, 0, 0, 'asked', now()) RETURNING id",
        [pod["metadata"]["uid"]],
    )
    await left_behind(rig, "hami-scale-a100x4-1", number["id"])

    shown = await rig.replica(**settings | {"scale": "plan"})

    await until(rig, "wanted")
    await eventually(lambda: is_empty(rig), "the placeholder to go")
    assert "1 node of a100x4 needed; this pod is 1 of 1 waiting pods" in await read_notes(
        shown, pod
    )


async def left_behind(world: World, name: str, wish: int) -> None:
    """A placeholder of an earlier scheduler."""
    await world.api.create(
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        {
            "metadata": {"name": name, "labels": {"hami.io/placeholder": str(wish)}},
            "spec": {"containers": [{"name": "wait", "image": "pause"}]},
        },
    )


async def is_empty(world: World) -> bool:
    return await placeholders(world) == []


async def test_the_type_of_nodes_that_went_is_kept(rig: World, settings: dict[str, Any]) -> None:
    replica = await rig.replica(**settings | {"scale_types_file": None})
    labels = {"group": "a10", "kubernetes.io/hostname": "old"}
    await rig.add_node("old", cards=2)
    await rig.api.patch("/api/v1/nodes/old", {"metadata": {"labels": labels}})

    async def is_type_known() -> bool:
        rows = await rig.database.fetch("SELECT name FROM node_types")
        return [row["name"] for row in rows] == ["a10"]

    await eventually(is_type_known, "the type to be known")
    await rig.api.delete("/api/v1/nodes/old")
    await eventually(lambda: _true(replica.cards("old") == []), "the node to be gone")

    await waiting(rig, 3)

    first, _ = await wait_for_placeholders(rig, 2)
    assert first["spec"]["nodeSelector"] == {"group": "a10"}
    with pytest.raises(NotFound):
        await rig.api.get("/api/v1/nodes/old")
