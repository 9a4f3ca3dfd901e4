"""Calls of kube-scheduler that are forwarded to the replica that leads, and those it answers.

In: a call's body. Out: the leader's answer, or None where this replica is to answer it itself: it
leads, nobody does, or the leader does not answer. The ledger keeps the promises either way,
and each verb may be carried out twice; so a leader that is only slow costs nothing but work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from hamicommon.bus.client import Bus, Message
from hamicommon.bus.reader import read
from hamicommon.errors import Unavailable
from hamicommon.events import LEADER_SUBJECT, LeaderAnnounced, replica_subject
from hamicommon.process.shutdown import end

from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.replicas.leadership import LeadingReplica

logger = logging.getLogger(__name__)

ANNOUNCE_EVERY_S = 1.0
PATIENCE_S = 0.02
"""A leader that has not answered for so long is asked whether it is there: one that was killed a
moment ago, before the bus noticed, keeps a call no longer than this."""
PRESENT_S = 0.1
"""So long its answer to that counts, for all calls that wait."""
PROBE_S = 0.5
"""Who does not answer that within this is not."""
MOST_BYTES = 512 * 1024
"""Of a call; a longer one (whole nodes) is answered here."""
HEADERS_BYTES = 4096
"""Room for those that the bus adds to a call or its answer."""
TOO_LONG = b""
"""In place of an answer that the bus does not take: of a pod that thousands of nodes refuse."""
AFTER_ANSWER_S = 0.001
"""By then an answer has left."""
FAREWELL_S = 0.5
PROBE = "ping"

Answering = Callable[[str, bytes], Awaitable[tuple[bytes, Callable[[], None]]]]
"""(verb, body) -> the answer, and what is to be called once it has left. Never raises."""


class CallForwarding:
    """This replica's end of it."""

    def __init__(
        self,
        bus: Bus,
        leadership: LeadingReplica,
        *,
        answer: Answering,
        readiness: Callable[[], Awaitable[Mapping[str, str]]],
        instruments: SchedulerInstruments,
        enabled: bool,
        timeout_s: float,
    ) -> None:
        """`answer`: of this replica itself; `readiness`: why it can't decide, empty when it can;
        `timeout_s`: as long as kube-scheduler waits for an answer."""
        self._bus = bus
        self._leadership = leadership
        self._answer = answer
        self._readiness = readiness
        self._instruments = instruments
        self._enabled = enabled
        self._timeout_s = timeout_s
        self._changed = asyncio.Event()
        self._probes: dict[str, asyncio.Task[None]] = {}

    def loops(self) -> tuple[tuple[str, Callable[[], Awaitable[None]]], ...]:
        """What runs while this replica does, by name."""
        if not self._enabled:
            return ()
        calls = replica_subject(self._leadership.replica, "*")
        return (
            ("leader", self.announce),
            ("leaders", lambda: self._bus.follow((LEADER_SUBJECT,), self._heard)),
            ("forwarded", lambda: self._bus.serve(calls, "", self._respond, together=True)),
        )

    def follows(self) -> bool:
        """Whether another replica is known to lead."""
        return self._leadership.follows

    async def ask(self, verb: str, body: bytes) -> bytes | None:
        """The leader's answer; None: this replica is to answer."""
        if not self._enabled or not self._bus.connected:
            return None
        if len(body) > min(MOST_BYTES, self._most_bytes()):
            return None
        for _ in range(2):
            leader = self._leader()
            if not leader:
                return None
            try:
                answer = await self._asked(leader, verb, body)
            except Unavailable as exc:
                self._instruments.forwarded_calls.labels("unanswered").inc()
                self._leadership.lost(leader)
                about = {"leader": leader, "verb": verb, "error": str(exc)}
                logger.warning("leader does not answer", extra=about)
                continue
            result = "too_long" if answer == TOO_LONG else "answered"
            self._instruments.forwarded_calls.labels(result).inc()
            return None if answer == TOO_LONG else answer
        return None

    def _most_bytes(self) -> int:
        """Of a call or an answer on the bus."""
        return self._bus.max_payload_bytes - HEADERS_BYTES

    def _leader(self) -> str:
        """Who is to answer; empty: this replica, which leads then and announces it."""
        led = self._leadership.leads
        leader = self._leadership.called()
        if self._leadership.leads and not led:
            self._changed.set()
        return leader

    async def _asked(self, leader: str, verb: str, body: bytes) -> bytes:
        """Raises: Unavailable."""
        subject = replica_subject(leader, verb)
        call = asyncio.create_task(self._bus.request(subject, body, timeout_s=self._timeout_s))
        try:
            while not (await asyncio.wait([call], timeout=PATIENCE_S))[0]:
                probe = self._probe_of(leader)
                await asyncio.wait([call, probe], return_when=asyncio.FIRST_COMPLETED)
                if probe.done() and not call.done():
                    probe.result()
            return call.result()
        finally:
            await end([call])

    def _probe_of(self, leader: str) -> asyncio.Task[None]:
        """One for all calls that wait; it ends with Unavailable where the leader is not there."""
        probe = self._probes.get(leader)
        if probe is None:
            probe = self._probes[leader] = asyncio.create_task(self._probe(leader))
            probe.add_done_callback(partial(self._probed, leader))
        return probe

    def _probed(self, leader: str, probe: asyncio.Task[None]) -> None:
        del self._probes[leader]
        if not probe.cancelled():
            probe.exception()  # raised where a call still waits

    async def _probe(self, leader: str) -> None:
        """Once answered it lasts, for calls that begin to wait then. Raises: Unavailable."""
        await self._bus.request(replica_subject(leader, PROBE), b"", timeout_s=PROBE_S)
        await asyncio.sleep(PRESENT_S)  # no event: so long the answer counts

    async def _respond(self, subject: str, body: bytes) -> bytes:
        verb = subject.rpartition(".")[2]
        if verb == PROBE:
            return b""
        self._leadership.forwarded()
        answer, afterwards = await self._answer(verb, body)
        asyncio.get_running_loop().call_later(AFTER_ANSWER_S, afterwards)
        return answer if len(answer) <= self._most_bytes() else TOO_LONG

    async def _heard(self, message: Message) -> None:
        announced = read(LeaderAnnounced, message.data, "announcement of a leader")
        if self._leadership.heard(announced.replica, leads=announced.leads):
            self._changed.set()

    async def announce(self) -> None:
        """Announces that this replica leads, while it does and can decide; until cancelled."""
        announced = False
        try:
            while True:
                leads = self._leadership.leads
                self._instruments.leads.set(leads)
                if leads or announced:
                    await self._announce(leads=leads)
                announced = leads
                self._changed.clear()
                try:
                    async with asyncio.timeout(ANNOUNCE_EVERY_S):
                        await self._changed.wait()
                except TimeoutError:
                    await self._check()
        finally:
            if announced:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await self._announce(leads=False)

    async def _check(self) -> None:
        """Resigns where this replica leads and can't decide any more."""
        if self._leadership.leads and (missing := await self._readiness()):
            logger.warning("can't lead", extra={"missing": dict(missing)})
            self._leadership.resign()

    async def _announce(self, *, leads: bool) -> None:
        message = LeaderAnnounced(replica=self._leadership.replica, leads=leads)
        await self._bus.broadcast(LEADER_SUBJECT, message)
