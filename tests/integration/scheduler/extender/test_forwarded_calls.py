"""Calls that come to any replica are answered by the one that leads, while it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from hami_scheduler.extender.app import FORWARDED
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.replicas.forwarding import MOST_BYTES, CallForwarding
from hami_scheduler.replicas.leadership import LeadingReplica
from hamicommon.bus.client import Bus, NobodyAnswers
from hamicommon.events import LEADER_SUBJECT, LeaderAnnounced, replica_subject
from hamicommon.process.shutdown import end

from tests.integration.scheduler.world import Replica, World
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

FIRST = "0000"
"""A name before every other."""


def forwarded(replica: Replica, result: str = "answered") -> float:
    """How many of its calls went to a leader."""
    return float(replica.service.instruments.forwarded_calls.labels(result)._value.get())


def decided(replica: Replica) -> float:
    """How many pods it placed."""
    return float(replica.service.instruments.decisions.labels("placed", "")._value.get())


async def one_leads(world: World, leader: Replica, *others: Replica) -> None:
    """Returns when the others know the leader."""
    pod = await world.pod("first")
    await leader.filter(pod, "n1")
    for other in others:

        async def forwards(other: Replica = other) -> bool:
            before = forwarded(other)
            await other.filter(pod, "n1")
            return forwarded(other) > before

        await eventually(forwards, "the other replica to know the leader")


async def test_a_pod_is_placed_and_bound_by_the_leader_wherever_it_comes(world: World) -> None:
    first, second = [await world.replica(forward_calls=True) for _ in range(2)]
    await world.add_node("n1")
    await one_leads(world, first, second)
    before = forwarded(second)
    pod = await world.pod("wanted")

    answer = await second.filter(pod, "n1")
    error = await second.bind(pod, "n1")

    assert (answer["NodeNames"], error) == (["n1"], "")
    assert forwarded(second) == before + 2
    await world.until(pod, "bound")
    await eventually(lambda: decided(first) >= 2, "the leader's decisions to be counted")
    assert decided(second) == 0


async def test_an_answer_too_long_for_the_bus_is_given_where_the_call_came(world: World) -> None:
    first, second = [await world.replica(forward_calls=True) for _ in range(2)]
    await world.add_node("n1")
    await one_leads(world, first, second)
    pod = await world.pod("wanted")
    # A short call; its answer has each node's name again, with a reason.
    names = [f"unknown-{number:05}" for number in range(20_000)]

    answer = await second.filter(pod, *names)

    assert set(answer["FailedNodes"]) == set(names)
    assert len(json.dumps(answer)) > world.bus.max_payload_bytes
    assert forwarded(second, "too_long") == 1
    assert forwarded(second, "unanswered") == 0
    assert second.service.forwarding.follows()


async def test_a_leader_that_ends_leaves_the_lead_to_the_next_that_is_called(world: World) -> None:
    async with AsyncExitStack() as own:
        first = await replace(world, stack=own).replica(forward_calls=True)
        second = await world.replica(forward_calls=True)
        await world.add_node("n1")
        await one_leads(world, first, second)
    pod = await world.pod("wanted")

    answer = await second.filter(pod, "n1")

    assert answer["NodeNames"] == ["n1"]
    assert forwarded(second, "unanswered") == 0
    await eventually(lambda: decided(second) == 1, "its decision to be counted")


@asynccontextmanager
async def playing_leader(
    bus: Bus, respond: Callable[[str, bytes], Awaitable[bytes]]
) -> AsyncIterator[None]:
    """Somebody who leads and answers so."""
    serving = asyncio.create_task(
        bus.serve(replica_subject(FIRST, "*"), "", respond, together=True)
    )

    async def served() -> bool:
        try:
            await bus.request(replica_subject(FIRST, "up"), b"", timeout_s=PATIENCE_S)
        except NobodyAnswers:
            return False
        return True

    await eventually(served, "the leader to be there")
    await bus.broadcast(LEADER_SUBJECT, LeaderAnnounced(replica=FIRST))
    try:
        yield
    finally:
        await end([serving])


@pytest.mark.parametrize("verb", sorted(FORWARDED))
async def test_a_leader_that_hangs_is_given_up_and_the_pod_is_placed_here(
    world: World, verb: str
) -> None:
    replica = await world.replica(forward_calls=True)
    await world.add_node("n1")
    pod = await world.pod("wanted")
    hung = asyncio.Event()

    async def respond(subject: str, body: bytes) -> bytes:
        if not subject.endswith(".up"):
            hung.set()
            await asyncio.Event().wait()
        return body

    async with playing_leader(world.bus, respond):

        async def asked() -> bool:
            if verb == "filter":
                assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
            else:
                assert await replica.bind(pod, "n1") == ""
            await world.bus.broadcast(LEADER_SUBJECT, LeaderAnnounced(replica=FIRST))
            return hung.is_set()

        await eventually(asked, "a call to be forwarded")

    assert forwarded(replica, "unanswered") >= 1
    assert (await world.rows(pod))[0]["node"] == "n1"


class Answering:
    """A replica that answers with its name and the call."""

    def __init__(self, bus: Bus, name: str, clock: Callable[[], float]) -> None:
        self.missing: dict[str, str] = {}
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.afterwards: list[str] = []
        self.leadership = LeadingReplica(name, clock)
        self.forwarding = CallForwarding(
            bus,
            self.leadership,
            answer=self._answer,
            readiness=self._readiness,
            instruments=SchedulerInstruments(),
            enabled=True,
            timeout_s=PATIENCE_S,
        )

    async def ask(self, body: bytes) -> bytes:
        """As the extender does."""
        answer = await self.forwarding.ask("filter", body)
        return answer if answer is not None else (await self._answer("filter", body))[0]

    async def _answer(self, verb: str, body: bytes) -> tuple[bytes, Callable[[], None]]:
        await self.go_on.wait()
        name = self.leadership.replica
        return name.encode() + b" " + body[:10], lambda: self.afterwards.append(verb)

    async def _readiness(self) -> Mapping[str, str]:
        return self.missing


@asynccontextmanager
async def two(bus: Bus) -> AsyncIterator[tuple[Answering, Answering]]:
    """Of which the first leads."""
    clock = asyncio.get_running_loop().time
    first, second = Answering(bus, "a", clock), Answering(bus, "b", clock)
    tasks = [
        asyncio.create_task(run(), name=name)
        for each in (first, second)
        for name, run in each.forwarding.loops()
    ]
    try:

        async def led() -> bool:
            return await first.ask(b"") == b"a " and await second.ask(b"") == b"a "

        await eventually(led, "the second to know the first")
        yield first, second
    finally:
        await end(tasks)


async def test_a_leader_that_is_slow_and_there_is_waited_for(world: World) -> None:
    async with two(world.bus) as (first, second):
        first.go_on.clear()
        answer = asyncio.create_task(second.ask(b"call"))
        await eventually(lambda: bool(second.forwarding._probes), "the leader to be probed")
        [probe] = second.forwarding._probes.values()
        async with asyncio.timeout(PATIENCE_S):
            await probe
        first.go_on.set()

        assert await answer == b"a call"
        await eventually(lambda: bool(first.afterwards), "what comes after the answer")


async def test_a_leader_that_can_not_decide_any_more_resigns(world: World) -> None:
    async with two(world.bus) as (first, second):
        first.missing = {"postgres": "away"}

        async def leads() -> bool:
            return await second.ask(b"call") == b"b call" and second.leadership.leads

        await eventually(leads, "the second to lead")
        assert not first.leadership.leads
        assert await first.ask(b"call") in (b"b call", b"a call")


async def test_a_call_too_long_for_the_bus_is_answered_where_it_came(world: World) -> None:
    async with two(world.bus) as (_, second):
        assert await second.ask(b"x" * MOST_BYTES) == b"a " + b"x" * 10
        assert await second.ask(b"x" * (MOST_BYTES + 1)) == b"b " + b"x" * 10
        assert not second.leadership.leads


async def test_two_that_began_at_the_same_moment_agree(world: World) -> None:
    async with two(world.bus) as (first, second):
        second.leadership.lost("a")
        assert await second.ask(b"") == b"b "

        async def agreed() -> bool:
            asked = {await first.ask(b""), await second.ask(b"")}
            return asked == {b"a "}

        await eventually(agreed, "one of them to lead")
