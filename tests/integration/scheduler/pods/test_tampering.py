"""Pods whose annotations are missing, foreign or changed, and reports that are missing or wrong."""

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from hamicommon import events
from hamicommon.k8s.types import Json
from hamicommon.settings import AdmissionSettings

from tests.integration.scheduler.world import World
from tests.waiting import eventually

HOST = {"name": "v", "hostPath": {"path": "/usr/local/vgpu/containers"}}


def mounting(path: str) -> Json:
    return {"volumeMounts": [{"name": "v", "mountPath": path}]}


def env(name: str, value: str) -> Json:
    return {"env": [{"name": name, "value": value}]}


UNDOING: list[tuple[Json, Json, str]] = [
    ({"securityContext": {"privileged": True}}, {}, "container main is privileged"),
    ({}, {"hostPID": True}, "hostPID"),
    (mounting("/data"), {"volumes": [HOST]}, "mount at /data of container main"),
    (mounting("/etc/../etc/hami"), {}, "mount at /etc/../etc/hami of container main"),
    (
        env("CUDA_DISABLE_CONTROL", "true"),
        {},
        "variable CUDA_DISABLE_CONTROL of container main",
    ),
    (
        env("GPU_CORE_UTILIZATION_POLICY", "disable"),
        {},
        "variable GPU_CORE_UTILIZATION_POLICY of container main",
    ),
    (
        env("NVIDIA_VISIBLE_DEVICES", "all"),
        {},
        "variable NVIDIA_VISIBLE_DEVICES of container main",
    ),
    (env("CUDA_TASK_PRIORITY", "0"), {}, "variable CUDA_TASK_PRIORITY of container main"),
]


async def undoing_pod(world: World, container: Json, spec: Json) -> Json:
    pod = await world.pod("undoes")
    pod["spec"]["containers"][0] |= container
    pod["spec"] |= spec
    return pod


async def test_it_is_refused_on_every_node_with_the_reason(world: World) -> None:
    replica, card = await world.replica_with_card()
    for container, spec, what in UNDOING:
        pod = await undoing_pod(world, container, spec)

        answer = await replica.filter(pod, "n1", "n2")

        reasons = dict.fromkeys(("n1", "n2"), f"PodRefused: {what}")
        assert answer["FailedAndUnresolvableNodes"] == reasons
        assert answer["NodeNames"] is None
        assert await world.rows(pod) == []
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_explain_and_the_pods_event_have_the_whole_sentence(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await undoing_pod(world, env("CUDA_DISABLE_CONTROL", "true"), {})
    uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
    await replica.filter(pod, "n1")
    sentence = (
        "container 'main': variable CUDA_DISABLE_CONTROL is 'true': it switches the limits off; "
        "leave it out (an operator permits it by HAMI_ADMISSION_TRUSTED_NAMESPACES)"
    )

    async def read_explanation() -> Json | None:
        answer = await replica.http.get(f"/v1/pods/{uid}/explain")
        return dict(answer.json()) if answer.status_code == 200 else None

    explained = await eventually(read_explanation, "the refusal to be recorded")
    assert explained["summary"] == sentence
    assert explained["notes"] == []
    assert [node["reason"] for node in explained["nodes"]] == [
        "PodRefused: variable CUDA_DISABLE_CONTROL of container main"
    ]

    async def is_shown() -> bool:
        events = await world.api.get(f"/api/v1/namespaces/{namespace}/events")
        return any(event["message"] == sentence for event in events["items"])

    await eventually(is_shown, "the pod's event")


@pytest.mark.parametrize(
    "permits",
    [
        {"tampering": "allow"},
        {"trusted_namespaces": ("default",)},
    ],
    ids=["allowed", "trusted namespace"],
)
async def test_an_operator_may_permit_it(world: World, permits: dict[str, Any]) -> None:
    replica, _ = await world.replica_with_card(admission=AdmissionSettings(**permits))

    for container, spec, _ in UNDOING:
        pod = await undoing_pod(world, container, spec)
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]


async def test_a_permitted_priority_and_a_pod_that_undoes_nothing_get_their_slices(
    world: World,
) -> None:
    replica, _ = await world.replica_with_card(
        admission=AdmissionSettings(priority_namespaces=("default",))
    )
    first = await undoing_pod(world, env("CUDA_TASK_PRIORITY", "0"), {})
    plain = await undoing_pod(world, mounting("/data"), {"volumes": []})

    for pod in (first, plain):
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]


async def test_a_pod_that_asks_for_no_card_is_passed_as_ever(world: World) -> None:
    replica = await world.replica()
    pod = await world.pod("plain", limits={"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1000"})
    pod["spec"]["hostPID"] = True

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]


async def test_a_broken_inventory_hurts_nobody(world: World) -> None:
    replica, _ = await world.replica_with_card()
    from pydantic import BaseModel

    class Nonsense(BaseModel):
        node: str = "n1"
        version: int = 7

    await world.bus.publish(events.inventory_subject("n1"), Nonsense(), message_id="nonsense")
    await world.add_node("n2")
    pod = await world.pod("slice")

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    letter = (await replica.get("/v1/dead-letters?limit=1"))["items"][0]
    assert letter["subject"] == events.inventory_subject("n1")
    assert "version is 7, and this release reads 1" in letter["reason"]
    assert "hami_scheduler_dead_letters_kept" in (await replica.http.get("/metrics")).text
    path = f"/v1/dead-letters/{letter['sequence']}/send"
    assert (await replica.http.post(path)).status_code == 200
    assert (await replica.http.post(path)).status_code == 404


async def test_a_card_that_two_nodes_claim_stays_where_it_was(world: World) -> None:
    from tests.integration.scheduler.world import inventory_device

    replica, card = await world.replica_with_card()

    await world.report("n2", inventory_device(card, 0))
    await world.add_node("n3")

    [device] = [d for d in (await replica.get("/v1/devices"))["items"] if d["uuid"] == card]
    assert device["node"] == "n1"


async def test_rows_of_pods_that_vanished_unseen_are_found_by_the_reconciler(
    world: World,
) -> None:
    pod = await world.pod("slice")
    async with AsyncExitStack() as own:
        first = await replace(world, stack=own).replica()
        [card] = await world.add_node("n1")
        await first.filter(pod, "n1")
        assert await first.bind(pod, "n1") == ""
        await world.until(pod, "bound")
    await world.delete(pod)
    second = await world.replica()

    assert (await world.until(pod, "releasing"))["reason"] == "pod deleted"

    async def list_drift() -> list[Any]:
        return (await second.get("/v1/drift?class=bound-pod-gone&limit=1"))["items"]

    [line] = await eventually(list_drift, "the difference to be noted")
    assert "bound -> releasing on n1: pod deleted" in line["detail"]
    assert (await world.used_amounts(card))[0] == 1  # until its node reports that it left


async def test_a_pod_bound_past_us_gets_an_event(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    pod = await world.pod("static")
    await world.api.create(
        f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": {"kind": "Node", "name": "n1"},
        },
    )

    async def is_written() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        return any(
            e["reason"] == "UnmanagedPod" and e["involvedObject"]["uid"] == pod["metadata"]["uid"]
            for e in items
        )

    await eventually(is_written, "the event on the pod")
