"""Pods that came to their nodes past us: granted what the kubelet gave them, if it has room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hamicommon import events
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}


async def past(world: World, name: str, node: str, limits: Json | None = None) -> Json:
    """A pod of another scheduler, bound to the node."""
    pod = await world.pod(name, limits=limits or GPU)
    metadata = pod["metadata"]
    await world.api.create(
        f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding",
        {"metadata": {"name": metadata["name"]}, "target": {"name": node}},
    )
    return await world.read(pod)


async def ask(world: World, pod: Json, node: str, *cards: str, **changes: Any) -> Any:
    metadata = pod["metadata"]
    request = events.UnmanagedRequest(
        node=node,
        pod_uid=metadata["uid"],
        namespace=metadata["namespace"],
        pod_name=metadata["name"],
        containers=(events.TakenContainer(container="main", uuids=cards),),
    ).model_copy(update=changes)
    reply = await world.ask(node, events.unmanaged_subject(node), request)
    return events.UnmanagedReply.model_validate_json(reply)


async def test_such_a_pod_is_granted_its_cards_watched_and_released(world: World) -> None:
    await world.replica()
    [card, _] = await world.add_node("n1", cards=2)
    pod = await past(world, "past", "n1")

    answer = await ask(world, pod, "n1", card)

    assert (answer.refused, answer.grant.answered) == ("", True)
    [container] = answer.grant.containers
    assert [(s.uuid, s.memory_mib, s.core_percent) for s in container.shares] == [(card, 4096, 30)]
    [row] = await world.rows(pod)
    assert (row["state"], row["token"]) == ("bound", answer.grant.token)
    assert await world.used(card) == (1, 4096, 30)
    annotations = (await world.read(pod))["metadata"]["annotations"]
    assert annotations["hami.io/vgpu-node"] == "n1"
    assert annotations["hami.io/vgpu-devices-allocated"] == f"{card},NVIDIA,4096,30:;"

    await world.publish_report(events.Allocated, row)
    await world.until(pod, "allocated")
    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used(card) == (0, 0, 0)


async def test_asking_again_gives_the_same_grant(world: World) -> None:
    await world.replica()
    [card] = await world.add_node("n1")
    pod = await past(world, "past", "n1")

    answers = await asyncio.gather(*(ask(world, pod, "n1", card) for _ in range(4)))

    tokens = {answer.grant.token for answer in answers if answer.grant}
    assert len(tokens) == 1
    assert len(await world.rows(pod)) == 1
    again = await ask(world, pod, "n1", card)
    assert {again.grant.token} == tokens


async def test_a_card_without_room_refuses_with_the_engines_reason(world: World) -> None:
    await world.replica()
    [card, other] = await world.add_node("n1", cards=2, memory_mib=6000)
    pods = [await past(world, f"past-{n}", "n1") for n in range(8)]

    answers = await asyncio.gather(*(ask(world, pod, "n1", card) for pod in pods))

    assert sum(answer.grant is not None for answer in answers) == 1
    [loser, *_] = [pod for pod, answer in zip(pods, answers, strict=True) if not answer.grant]
    assert "1/1 CardInsufficientMemory" in (await ask(world, loser, "n1", card)).refused
    assert await world.used(card) == (1, 4096, 30)
    assert await world.used(other) == (0, 0, 0)


@pytest.mark.parametrize(
    ("limits", "cards", "changes", "reason"),
    [
        pytest.param(GPU, 0, {}, "asks for 1 cards and its kubelet gave it 0", id="no card"),
        pytest.param(GPU, 2, {}, "asks for 1 cards and its kubelet gave it 2", id="two cards"),
        pytest.param(GPU, 1, {"pod_uid": "another"}, "does not run on", id="another uid"),
        pytest.param(GPU, 1, {"pod_name": "nobody"}, "nobody", id="gone by then"),
        pytest.param(
            {**GPU, "hygon.com/dcunum": "1"}, 1, {}, "asks for DCU devices", id="another vendor's"
        ),
    ],
)
async def test_what_does_not_add_up_is_refused_with_the_reason(
    world: World, limits: Json, cards: int, changes: Json, reason: str
) -> None:
    await world.replica()
    uuids = await world.add_node("n1", cards=2)
    pod = await past(world, "past", "n1", limits)

    answer = await ask(world, pod, "n1", *uuids[:cards], **changes)

    assert answer.grant is None
    assert reason in answer.refused
    assert await world.rows(pod) == []


async def test_a_node_may_ask_for_its_own_pods_alone(world: World) -> None:
    await world.replica()
    [card] = await world.add_node("n1")
    await world.add_node("n2")
    pod = await past(world, "past", "n1")

    answer = await ask(world, pod, "n2", card)

    assert "does not run on n2" in answer.refused

    async def refused() -> bool:
        return await world.rows(pod) == []

    assert await eventually(refused, "nothing to be written")
