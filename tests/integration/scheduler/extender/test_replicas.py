"""Several replicas decide concurrently: each slot is granted once, and all know all grants."""

import asyncio

from hamicommon import events

from tests.integration.scheduler.world import World
from tests.waiting import eventually


async def test_two_active_schedulers_give_the_last_slot_once(world: World) -> None:
    replicas = [await world.replica(), await world.replica()]
    [card] = await world.add_node("n1", slots=1)
    pods = [await world.pod(f"p{n}") for n in range(6)]

    async def is_placed(number: int) -> bool:
        replica, pod = replicas[number % 2], pods[number]
        answer = await replica.filter(pod, "n1")
        return bool(answer["NodeNames"]) and await replica.bind(pod, "n1") == ""

    bound = await asyncio.gather(*map(is_placed, range(6)))

    assert sum(bound) == 1
    assert await world.used_amounts(card) == (1, 1024, 0)


async def test_a_burst_over_two_active_schedulers_never_overcommits(world: World) -> None:
    replicas = [await world.replica(), await world.replica()]
    cards = await world.add_node("n1", cards=4, memory_mib=4096, slots=10)
    world.late.add("n1")
    pods = [await world.pod(f"p{n}", memory_mib=1024, cores=5) for n in range(24)]
    left = set(range(24))

    async def place(number: int) -> None:
        replica, pod = replicas[number % 2], pods[number]
        answer = await replica.filter(pod, "n1")
        if answer["NodeNames"] and await replica.bind(pod, "n1") == "":
            left.discard(number)

    # Pods that lost a race come again, as from kube-scheduler.
    for _ in range(3):
        await asyncio.gather(*map(place, sorted(left)))
        used = [await world.used_amounts(card) for card in cards]
        assert all(memory <= 4096 for _, memory, _ in used)
    assert len(left) == 8
    assert sum(memory for _, memory, _ in used) == 16 * 1024


async def test_what_one_scheduler_placed_another_binds(world: World) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")

    await first.filter(pod, "n1")

    assert await second.bind(pod, "n1") == ""


async def test_two_schedulers_that_bind_the_same_pod_do_it_once(world: World) -> None:
    first, second = await world.replica(), await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.reserved_pod(first)

    errors = await asyncio.gather(first.bind(pod, "n1"), second.bind(pod, "n1"))

    assert "" in errors
    await world.until(pod, "bound")
    assert (await world.used_amounts(card))[0] == 1
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_a_release_by_another_scheduler_is_found_by_the_next_comparison(
    world: World,
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1", slots=1)
    holder, waiter = await world.pod("a"), await world.pod("b")
    await first.filter(holder, "n1")
    assert await first.bind(holder, "n1") == ""

    async def is_refused() -> bool:
        return not (await second.filter(waiter, "n1"))["NodeNames"]

    await eventually(is_refused, "the other's grant to be known")
    await world.delete(holder)
    await world.publish_report(events.PodGone, await world.until(holder, "releasing"))
    await world.until(holder, "released")

    async def is_offered() -> bool:
        return (await second.filter(waiter, "n1"))["NodeNames"] == ["n1"]

    await eventually(is_offered, "the other's release to be known")
