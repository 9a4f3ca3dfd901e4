"""Annotations of a pod repeat what the ledger has, whatever becomes of them."""

from typing import Any

import pytest
from hamicommon import events
from hamicommon.k8s.annotations import NVIDIA_ALLOCATED

from tests.integration.scheduler.world import World
from tests.waiting import eventually


@pytest.mark.parametrize("written", ["GPU-mine,NVIDIA,81920,100:;", None, "nonsense"])
async def test_an_annotation_that_somebody_changed_is_the_ledgers_again(
    world: World, written: str | None
) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.bound_pod(replica)
    await world.publish_report(events.Allocated, await world.until(pod, "bound"))
    await world.until(pod, "allocated")
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"

    await world.api.patch(path, {"metadata": {"annotations": {NVIDIA_ALLOCATED: written}}})

    async def is_repaired() -> bool:
        annotations = (await world.read(pod))["metadata"]["annotations"]
        return bool(annotations.get(NVIDIA_ALLOCATED) == f"{card},NVIDIA,1024,0:;")

    await eventually(is_repaired, "the annotation to be repaired")
    assert await world.used_amounts(card) == (1, 1024, 0)

    async def is_journalled() -> bool:
        lines = (await replica.get("/v1/drift?class=annotations-differ"))["items"]
        return any(pod["metadata"]["uid"] in line["subject"] for line in lines)

    await eventually(is_journalled, "the line in the journal")


async def test_a_pod_whose_annotations_are_refused_holds_up_nothing(world: World) -> None:
    replica, card = await world.replica_with_card()
    full, other = await world.pod("full"), await world.pod("other")
    for pod in (full, other):
        await replica.filter(pod, "n1")
        await replica.bind(pod, "n1")
        await world.publish_report(events.Allocated, await world.until(pod, "bound"))
        await world.until(pod, "allocated")

    # No byte of an API server's 256 KiB is left for ours.
    kept = dict((await world.read(full))["metadata"]["annotations"])
    del kept[NVIDIA_ALLOCATED]
    taken = sum(len(key) + len(value) for key, value in kept.items()) + len("example.com/blob")
    blob = "x" * (256 * 1024 - taken)
    for pod, written in ((full, {"example.com/blob": blob}), (other, {})):
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        await world.api.patch(
            path, {"metadata": {"annotations": {NVIDIA_ALLOCATED: None, **written}}}
        )

    async def is_repaired(pod: dict[str, Any]) -> bool:
        annotations = (await world.read(pod))["metadata"]["annotations"]
        return bool(annotations.get(NVIDIA_ALLOCATED) == f"{card},NVIDIA,1024,0:;")

    async def is_journalled() -> bool:
        lines = (await replica.get("/v1/drift?class=annotations-refused"))["items"]
        return any(
            full["metadata"]["uid"] in line["subject"] and "Too long" in line["detail"]
            for line in lines
        )

    await eventually(is_journalled, "the refusal in the journal")
    await eventually(lambda: is_repaired(other), "the other pod to be repaired")

    path = f"/api/v1/namespaces/default/pods/{full['metadata']['name']}"
    await world.api.patch(path, {"metadata": {"annotations": {"example.com/blob": None}}})

    await eventually(lambda: is_repaired(full), "the pod to be repaired once there is room")
