"""/filter and /bind called again, or without the call before: one grant, or none."""

from __future__ import annotations

import pytest

from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_a_repeated_filter_counts_the_pod_once(world: World) -> None:
    replica = await world.replica()
    [card1] = await world.add_node("n1")
    [card2] = await world.add_node("n2")
    pod = await world.pod("slice", memory_mib=4096)
    await replica.filter(pod, "n1")

    again = await replica.filter(pod, "n2")

    assert again["NodeNames"] == ["n2"]
    assert await world.rows(pod) == []
    assert await replica.bind(pod, "n2") == ""
    assert await world.used(card1) == (0, 0, 0)
    assert await world.used(card2) == (1, 4096, 0)


async def test_a_pod_whose_binding_is_under_way_keeps_its_node(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    await world.add_node("n2")
    pod = await world.pod("slice")
    [first] = (await replica.filter(pod, "n1", "n2"))["NodeNames"]
    state = replica.service.adopter.view
    state.note_binding(pod["metadata"]["uid"], first)

    again = await replica.filter(pod, "n1", "n2")
    elsewhere = await replica.filter(pod, *({"n1", "n2"} - {first}))

    assert again["NodeNames"] == [first]
    assert f"being bound to node {first}" in elsewhere["Error"]


async def test_bind_without_a_filter_places_on_that_node(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")

    assert await replica.bind(pod, "n1") == ""

    assert (await world.until(pod, "bound"))["node"] == "n1"
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_bind_to_a_node_without_room_fails_with_the_reason(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("huge", memory_mib=999 * 1024)

    error = await replica.bind(pod, "n1")

    assert "1/1 CardInsufficientMemory" in error
    assert await world.used(card) == (0, 0, 0)


async def test_bind_again_is_a_success(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")

    assert await replica.bind(pod, "n1") == ""
    assert await replica.bind(pod, "n1") == ""
    assert await replica.filter(pod, "n1") | {"NodeNames": ["n1"]} == await replica.filter(
        pod, "n1"
    )


async def test_bind_of_a_pod_that_is_gone_gives_everything_back(world: World) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    await world.delete(pod)

    assert await replica.bind(pod, "n1") != ""

    async def ended() -> bool:
        # No grant at all if the watch saw the pod go before /bind came.
        return all(row["state"] in ("failed", "released") for row in await world.rows(pod))

    await eventually(ended, "every grant of the pod to be ended")
    assert await world.used(card) == (0, 0, 0)
