"""Keep the present cluster in memory while pages are open, and record its changes.

Nothing is read while no page is open: a page requests a reading when the last one is old, and a
loop reads only while a stream is open. A reading takes the cards that changed, and from time to
time all of them, since a transaction may commit later than it began. A failure is kept beside the
last state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.process.bulkhead import Bulkhead

from hami_metrics.pages.amounts import clock_time, moment
from hami_metrics.pages.cluster import (
    PageCluster,
    changed_nodes,
    is_silent,
    merge_nodes,
    with_known_cards,
)
from hami_metrics.pages.readings import (
    ChangeMark,
    PagesLedger,
    card_use,
    read_bare_nodes,
    read_cards,
    read_marks,
    read_nodes,
    read_recent,
    read_schedulers,
    read_use,
    read_waiting,
)

logger = logging.getLogger(__name__)

MAX_STREAMS = 500
"""Maximum number of streams, 20 KiB each; further pages have no live updates."""
MAX_CHANGES = 600
"""Number of changes after which a stream that missed them reloads its page."""
FULL_INTERVAL = timedelta(seconds=30)
OVERLAP = timedelta(seconds=10)
"""Overlap of readings, for transactions that commit late; a full reading finds longer ones."""
EVENTS_OVERLAP = 500
USE_INTERVAL = timedelta(seconds=30)
WAITING_INTERVAL = timedelta(seconds=3)
RESTART_GRACE = timedelta(seconds=3)
"""Duration of an outage up to which a part counts as restarting."""
HANGS_AFTER = timedelta(seconds=10)
"""Time without a query of schedulers, which query every second, after which they hang."""
MAX_SILENT_NAMED = 3


def interval_s(nodes: int) -> float:
    """Return the interval at which changes are sent, by the number of nodes."""
    if nodes <= 100:
        return 0.5
    return 1.0 if nodes <= 1000 else 3.0


class Notice(NamedTuple):
    """Line above a page about an unavailable part: since when, and what still works."""

    part: str
    """`ledger`, `scheduler`, `events` or `agents`."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """Times since which parts are unavailable; None: available, or unknown."""

    ledger: datetime | None = None
    scheduler: datetime | None = None
    scheduler_hangs: datetime | None = None
    """Time since which all schedulers are connected but query nothing."""
    events: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Failure because of which the newest state is outdated."""

    since: datetime
    """Time of the first failed reading."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLook:
    """Newest state, and its failure if there is one."""

    state: PageCluster | None
    trouble: Trouble | None
    notices: tuple[Notice, ...] = ()


class Feed:
    """Reader of the newest state, for all viewers."""

    def __init__(
        self,
        ledger: PagesLedger,
        clock: Callable[[], datetime],
        bulkhead: Bulkhead,
        events_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        """`events_connected`: returns whether the bus, which brings measured use, is connected."""
        self._ledger = ledger
        self._events_connected = events_connected
        self._away = Outages()
        self._clock = clock
        self._bulkhead = bulkhead
        self._state: PageCluster | None = None
        self._trouble: Trouble | None = None
        self._turn = asyncio.Lock()
        self._read_at: datetime | None = None
        self._full_at: datetime | None = None
        self._use_at: datetime | None = None
        self._waiting_at: datetime | None = None
        self._event = 0
        self._marks: frozenset[ChangeMark] = frozenset()
        """Marks of the last reading: readings overlap, and known changes are not read again."""
        self._changes: deque[tuple[int, frozenset[str]]] = deque(maxlen=MAX_CHANGES)
        self._shown = FeedLook(state=None, trouble=None)
        """The look of all streams: made once a reading."""
        self._streams = 0
        self._loop: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._closed = False

    async def look(self) -> FeedLook:
        """Return the newest state, reading again if it is older than the stream's interval."""
        age_s = None if self._read_at is None else (self._clock() - self._read_at).total_seconds()
        if age_s is None or age_s > interval_s(self._node_count()):
            await self._read_once()
        return self.newest()

    def newest(self) -> FeedLook:
        """Return the state of the last reading."""
        return FeedLook(
            state=self._state,
            trouble=self._trouble,
            notices=notices(self._state, self._away, self._clock()),
        )

    def changed_since(self, version: int) -> frozenset[str] | None:
        """Return nodes that changed after that version; None: too long ago, or another process's.

        Versions begin at the time of a process's first reading in milliseconds, so those of one
        process are never among those of another.
        """
        state = self._state
        if state is None or version > state.version:
            return None
        if version == state.version:
            return frozenset()
        if not self._changes or self._changes[0][0] > version + 1:
            return None
        return frozenset().union(*(names for number, names in self._changes if number > version))

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Callable[[], AsyncIterator[FeedLook]]]:
        """Count one viewer, and yield an iterator of states after each reading, until closed.

        A slow reader misses readings, never the newest. Raises: Unavailable when too many look.
        """
        if self._closed or self._streams >= MAX_STREAMS:
            raise Unavailable(f"{MAX_STREAMS} streams are open, the maximum: close a page")
        self._streams += 1
        try:
            if self._loop is None or self._loop.done():
                self._loop = asyncio.create_task(self._keep_reading(), name="pages feed")
            yield self._looks
        finally:
            self._streams -= 1

    async def close(self) -> None:
        """Close all streams."""
        self._closed = True
        self._wake()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _looks(self) -> AsyncIterator[FeedLook]:
        while not self._closed:
            news = self._news
            await news.wait()
            if self._closed:
                return
            yield self._shown

    async def _keep_reading(self) -> None:
        while self._streams and not self._closed:
            await self._read_once()
            self._shown = self.newest()
            self._wake()
            await asyncio.sleep(interval_s(self._node_count()))

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _read_once(self) -> None:
        wanted_at = self._clock()
        async with self._turn:
            # A caller that waited for the lock uses the reading made in the meantime.
            if self._read_at is not None and self._read_at >= wanted_at:
                return
            since = wanted_at if self._trouble is None else self._trouble.since
            failed: Trouble | None = Trouble(since=since, sentence="an error that is in the log")
            # An unforeseen error is logged and counted, and the pages stay.
            with self._bulkhead.item("pages", "reading of the ledger"):
                try:
                    await self._read()
                    failed = None
                except HamiError as exc:
                    if self._trouble is None:
                        logger.warning(
                            "Failed to read the ledger for the pages",
                            extra={"error": clip(str(exc))},
                        )
                    failed = Trouble(since=since, sentence=str(exc))
            self._trouble = failed
            self._read_at = self._clock()
            self._away = replace(
                self._away,
                ledger=None if failed is None else failed.since,
                events=_since(self._away.events, self._read_at, away=not self._events_connected()),
            )

    async def _read(self) -> None:
        before, marks = self._state, self._marks
        async with self._ledger.look() as connection:
            now: datetime = await connection.fetchval("SELECT now()")
            is_full = before is None or self._full_at is None or now - self._full_at > FULL_INTERVAL
            if before is None or is_full:
                nodes = await read_nodes(connection)
                nodes = with_known_cards(nodes, {} if before is None else before.nodes)
            else:
                since = before.taken_at - OVERLAP
                marks = await read_marks(connection, since, self._event - EVENTS_OVERLAP)
                present = await read_bare_nodes(connection)
                new = present.keys() - before.nodes.keys()
                if new:
                    present |= await read_nodes(connection, new)
                written = marks - self._marks
                cards = await read_cards(connection, written)
                nodes = merge_nodes(before.nodes, present, {mark.uuid for mark in written}, cards)
            recent, event = await read_recent(connection)
            schedulers = await read_schedulers(connection)
            after = replace(
                before or PageCluster(version=0, taken_at=now, nodes={}),
                taken_at=now,
                nodes=nodes,
                recent=recent,
            )
            if self._use_at is None or now - self._use_at > USE_INTERVAL:
                use = await read_use(connection, list(nodes), now, summed=True)
                after = replace(after, use=card_use(use))
                self._use_at = now
        if self._waiting_at is None or now - self._waiting_at > WAITING_INTERVAL:
            async with self._ledger.connection() as connection:
                waiting, reasons = await read_waiting(connection)
            after = replace(after, waiting=waiting, waiting_by_reason=reasons)
            self._waiting_at = now
        self._away = replace(
            self._away,
            scheduler=_since(self._away.scheduler, now, away=schedulers.connections == 0),
            scheduler_hangs=hanging_since(schedulers.used_at, now),
        )
        if is_full:
            self._full_at = now
        self._event, self._marks = event, marks
        self._publish(before, after)

    def _publish(self, before: PageCluster | None, after: PageCluster) -> None:
        if before is None:
            self._state = replace(after, version=int(after.taken_at.timestamp() * 1000))
            return
        names = changed_nodes(before, after)
        is_same = (
            not names
            and before.recent == after.recent
            and before.waiting == after.waiting
            and before.waiting_by_reason == after.waiting_by_reason
            and before.use == after.use
        )
        if is_same:
            self._state = after
            return
        self._state = replace(after, version=before.version + 1)
        self._changes.append((before.version + 1, names))

    def _node_count(self) -> int:
        return 0 if self._state is None else len(self._state.nodes)


def _since(before: datetime | None, now: datetime, *, away: bool) -> datetime | None:
    """Return the time at which a part was first found away; None when it is not away."""
    return (before or now) if away else None


def hanging_since(used_at: datetime | None, now: datetime) -> datetime | None:
    """Return since when schedulers hang, whose connections were last used at `used_at`."""
    return used_at if used_at is not None and now - used_at > HANGS_AFTER else None


def notices(state: PageCluster | None, away: Outages, now: datetime) -> tuple[Notice, ...]:
    """Return the notices, the most serious first; a page of the past has none."""
    if state is None or state.past:
        return ()
    found = []
    if away.ledger is not None:
        found.append(
            Notice(
                "ledger",
                f"Ledger unreachable since {clock_time(away.ledger)}. Showing the state of"
                f" {moment(state.taken_at)}. Running pods are not affected.",
            )
        )
    elif away.scheduler is not None and now - away.scheduler >= RESTART_GRACE:
        # While the ledger is unavailable, this is as unknown as all that only its answers show.
        found.append(
            Notice(
                "scheduler",
                "No scheduler is connected to the ledger (noticed"
                f" {clock_time(away.scheduler)}). Grants are shown as last written. Running pods"
                " are not affected; new pods wait. Check: hamictl doctor",
            )
        )
    elif away.scheduler_hangs is not None:
        found.append(
            Notice(
                "scheduler",
                "The scheduler is connected to the ledger and has done nothing since"
                f" {clock_time(away.scheduler_hangs)}: it hangs, or was stopped. Grants are shown"
                " as last written. Running pods are not affected; new pods wait. Restart it.",
            )
        )
    if away.events is not None and now - away.events >= RESTART_GRACE:
        measured = max((use.at for use in state.use.values()), default=None)
        until = (
            "was never measured"
            if measured is None
            else f"was last measured at {moment(measured)} or soon after"
        )
        found.append(
            Notice(
                "events",
                f"NATS unreachable (noticed {clock_time(away.events)}). Grants are up to date."
                f" Usage {until}; newer reports arrive when it is back.",
            )
        )
    found.extend(_silent_agents(state, now))
    return tuple(found)


def _silent_agents(state: PageCluster, now: datetime) -> Iterable[Notice]:
    silent = [node for node in state.nodes.values() if is_silent(node, now)]
    if not silent:
        return
    silent.sort(key=lambda node: (node.heard_at is not None, node.heard_at, node.name))
    named = ", ".join(
        f"{node.name} (last report {moment(node.heard_at)})"
        if node.heard_at
        else f"{node.name} (never)"
        for node in silent[:MAX_SILENT_NAMED]
    )
    more = len(silent) - MAX_SILENT_NAMED
    rest = f" and {more} more" if more > 0 else ""
    agents = "agent is" if len(silent) == 1 else "agents are"
    yield Notice(
        "agents",
        f"{len(silent)} {agents} silent: {named}{rest}. Cards there count as unknown; grants"
        " and running pods stay.",
    )
