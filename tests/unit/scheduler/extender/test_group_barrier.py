"""The barrier at /bind: all grants of a group are written together, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hami_scheduler.extender.group_barrier import GroupBarrier
from hami_scheduler.ledger.writer import LedgerWriter
from hamicommon.domain.ids import PodUid
from hamicommon.errors import CapacityConflict, Conflict, HamiError, NotFound
from hamicommon.k8s.pod_groups import PodGroup
from hamicommon.ledger.model import Change, Command, Draft

from tests.fakes.ledger import FakeLedger
from tests.unit.devices import a_device
from tests.unit.scheduler.placement.test_groups import GROUP, NODES, Stage, member


class Ledger(FakeLedger):
    """A ledger that counts its transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        for node in NODES:
            for index in range(2):
                self.add_card(
                    node, a_device(f"{node}-{index}", index=index, type="A100", memory_mib=1000)
                )

    async def commit(self, commands: Sequence[Command]) -> list[Change | HamiError | None]:
        self.batches.append(len(commands))
        return await super().commit(commands)


class World(Stage):
    """A stage with a barrier over a ledger."""

    def __init__(self, *, is_on: bool = True) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.writer = LedgerWriter(self.ledger, window_s=0.0, on_committed=self.state.on_committed)
        self.barrier = GroupBarrier(plans=self.plans, writer=self.writer, is_on=is_on)

    def bind(self, name: str) -> asyncio.Task[Change]:
        draft = self.ask(name)
        assert isinstance(draft, Draft)
        return asyncio.create_task(self.barrier.enter(draft))

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    await found.state.load()
    running = asyncio.create_task(found.writer.run())
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_members_wait_until_the_quorum_is_there_and_are_written_in_one_commit(
    world: World,
) -> None:
    world.show("a", "b", "c", "d")
    early = [world.bind(name) for name in "abc"]
    await world.settle()
    assert world.ledger.batches == []

    changes = await asyncio.gather(*early, world.bind("d"))

    assert world.ledger.batches == [4]
    assert {each.allocation.pod_uid for each in changes} == set("abcd")
    assert all(world.state.assumption(PodUid(name)) is None for name in "abcd")
    # Beyond the quorum no pod waits.
    world.show("e")
    assert world.ask("e") is None


async def test_if_the_ledger_refuses_one_none_is_granted(world: World) -> None:
    world.show("a", "b", "c", size=3)
    tasks = [world.bind(name) for name in "ab"]
    card = world.ask("c")
    assert isinstance(card, Draft)
    [uuid] = [each.uuid for each in card.placement.footprints()]
    world.ledger._cards[uuid].used_memory_mib = 900

    answers = await asyncio.gather(*tasks, world.bind("c"), return_exceptions=True)

    assert [type(each) for each in answers] == [Conflict, Conflict, CapacityConflict]
    assert await world.ledger.live() == []
    assert world.used_memory_mib() == 0


async def test_a_group_that_does_not_come_together_in_time_is_given_up(world: World) -> None:
    world.plans.bind_s = 0.01
    world.show("a", "b", "c", "d")
    tasks = [world.bind(name) for name in "abc"]

    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert {str(each) for each in answers} == {
        "3 of 4 pods of group default/g came to be bound within 0.01 s"
    }
    assert world.used_memory_mib() == 0
    assert "tried again in" in str(world.ask("a"))
    assert world.ledger.batches == []


async def test_a_bind_that_is_repeated_waits_for_the_same_grant(world: World) -> None:
    world.show("a", "b", size=2)
    first, again = world.bind("a"), world.bind("a")
    await world.settle()

    await world.bind("b")

    assert (await first) == (await again)
    assert world.ledger.batches == [2]


async def test_a_member_that_is_gone_leaves_and_its_successor_completes_the_group(
    world: World,
) -> None:
    world.show("a", "b", "c", size=3)
    tasks = [world.bind(name) for name in "ab"]
    await world.settle()

    world.plans.pod_gone(member("b"))
    with pytest.raises(NotFound):
        await tasks[1]
    world.state.lift([PodUid("b")])
    world.show("b2", size=3)
    changes = await asyncio.gather(tasks[0], world.bind("b2"), world.bind("c"))

    assert {each.allocation.pod_uid for each in changes} == {"a", "b2", "c"}


async def test_a_raised_quorum_holds_those_that_wait(world: World) -> None:
    world.show("a", "b", "c", size=2)
    first = world.bind("a")
    await world.settle()
    world.show("b", size=3)

    second = world.bind("b")
    await world.settle()
    assert [each.done() for each in (first, second)] == [False, False]

    await asyncio.gather(first, second, world.bind("c"))
    assert world.ledger.batches == [3]


@pytest.mark.parametrize("why", ["bundle", "podgroup"])
async def test_a_group_that_a_plugin_holds_has_no_barrier(why: str) -> None:
    world = World(is_on=why != "bundle")
    await world.state.load()
    running = asyncio.create_task(world.writer.run())
    if why == "podgroup":
        world.crd[GROUP] = 2
    world.show("a", "b", size=2)

    change: Any = await world.bind("a")

    assert change.allocation.pod_uid == "a"
    assert world.state.assumption(PodUid("b")) is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_those_that_wait_are_let_go_when_one_of_them_has_no_place_any_more(
    world: World,
) -> None:
    world.show("a", "b", "c", size=3)
    waiting = world.bind("a")
    await world.settle()
    # The others' time is over, and another group takes two of their three cards.
    world.state.lift([PodUid("b"), PodUid("c")])
    world.show("x", "y", group="other", size=2, gpumem=900)
    assert isinstance(world.ask("x", group=PodGroup("default", "other")), Draft)

    assert "tried again in" in str(world.ask("b"))

    with pytest.raises(Conflict, match="2 of the 3 pods that start together fit"):
        await waiting
    assert world.used_memory_mib() == 2 * 900
