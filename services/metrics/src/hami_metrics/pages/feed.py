"""Keeps the cluster in memory while somebody looks, and hands out what changed, made once.

Nothing is read while nobody looks: a page asks for a reading when the last one is old, and a loop
reads only while a stream is open. A reading takes the cards that changed; all of them now and then,
since a transaction may commit later than it began. What went wrong is kept beside the last state.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.connection import Connection
from hamicommon.process.bulkhead import Bulkhead

from hami_metrics.pages.domain.cluster import (
    PageCluster,
    PageNode,
    changed_nodes,
    with_known_cards,
)
from hami_metrics.pages.domain.notices import Away, Notice, hanging_since, notices
from hami_metrics.pages.domain.refresh import refreshed
from hami_metrics.pages.reading.activity import (
    read_recent,
    read_schedulers,
    read_use,
    read_waiting,
)
from hami_metrics.pages.reading.cluster import (
    ChangeMark,
    read_bare_nodes,
    read_cards,
    read_marks,
    read_nodes,
)
from hami_metrics.pages.reading.session import PagesLedger

logger = logging.getLogger(__name__)

MOST_STREAMS = 500
"""Some 20 KiB each; who comes later gets a page without live updates."""
CHANGES_KEPT = 600
"""A stream that was away for so many changes loads its page again."""
FULL_EVERY = timedelta(seconds=30)
OVERLAP = timedelta(seconds=10)
"""A transaction that began earlier may commit later; longer ones are met by the full reading."""
EVENTS_OVERLAP = 500
USE_EVERY = timedelta(seconds=30)
WAITING_EVERY = timedelta(seconds=3)


def interval_s(nodes: int) -> float:
    """How long changes are gathered before they are sent, by the number of nodes."""
    if nodes <= 100:
        return 0.5
    return 1.0 if nodes <= 1000 else 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why the last state is not the present one."""

    since: datetime
    """Of the first reading that failed."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLook:
    """The newest state, and what is wrong with it."""

    state: PageCluster | None
    trouble: Trouble | None
    notices: tuple[Notice, ...] = ()


class Feed:
    """The newest state; one for all viewers."""

    def __init__(
        self,
        ledger: PagesLedger,
        clock: Callable[[], datetime],
        bulkhead: Bulkhead,
        events_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        """`events_connected`: whether the bus is there that brings what was measured."""
        self.epoch = secrets.token_hex(4)
        """Versions are of this process alone: another one counts from 1 as well."""
        self._ledger = ledger
        self._events_connected = events_connected
        self._away = Away()
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
        """Of the last reading of changes: readings overlap, and what is known is not read again."""
        self._changes: deque[tuple[int, frozenset[str]]] = deque(maxlen=CHANGES_KEPT)
        self._shown = FeedLook(state=None, trouble=None)
        """What streams look at: made once a reading."""
        self._streams = 0
        self._loop: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._streams

    async def look(self) -> FeedLook:
        """The newest state, read again when it is older than a stream would have it."""
        if self._read_at is None or self._age_s() > interval_s(self._nodes()):
            await self._read_once()
        return self.newest()

    def newest(self) -> FeedLook:
        """As it was read last."""
        return FeedLook(
            state=self._state,
            trouble=self._trouble,
            notices=notices(self._state, self._away, self._clock()),
        )

    def changed_since(self, version: int) -> frozenset[str] | None:
        """Nodes that changed after that version; None: too long ago, or of another process."""
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
        """Counts one viewer; yields what to iterate over: a look after each reading, until closed.

        A slow reader misses readings, never the newest. Raises: Unavailable when too many look.
        """
        if self._closed or self._streams >= MOST_STREAMS:
            raise Unavailable(f"{MOST_STREAMS} streams are open, which is the most")
        self._streams += 1
        try:
            if self._loop is None or self._loop.done():
                self._loop = asyncio.create_task(self._keep_reading(), name="pages feed")
            yield self._looks
        finally:
            self._streams -= 1

    async def close(self) -> None:
        """Ends every stream."""
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
            await asyncio.sleep(interval_s(self._nodes()))

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _read_once(self) -> None:
        asked_at = self._clock()
        async with self._turn:
            # Who waited for the turn takes what was read in the meantime.
            if self._read_at is not None and self._read_at >= asked_at:
                return
            since = asked_at if self._trouble is None else self._trouble.since
            failed: Trouble | None = Trouble(since=since, sentence="an error that is in the log")
            # One that nobody thought of is logged and counted, and the pages stay.
            with self._bulkhead.item("pages", "reading of the ledger"):
                try:
                    await self._read()
                    failed = None
                except HamiError as exc:
                    if self._trouble is None:
                        logger.warning("pages: ledger not read", extra={"error": clip(str(exc))})
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
            full = before is None or self._full_at is None or now - self._full_at > FULL_EVERY
            if before is None or full:
                nodes: Mapping[str, PageNode] = await read_nodes(connection)
                if before is not None:
                    nodes = with_known_cards(nodes, before.nodes)
            else:
                since = before.taken_at - OVERLAP
                marks = await read_marks(connection, since, self._event - EVENTS_OVERLAP)
                nodes = await _read_again(connection, before.nodes, marks - self._marks)
            recent, event = await read_recent(connection)
            schedulers = await read_schedulers(connection)
            after = PageCluster(
                version=0 if before is None else before.version,
                taken_at=now,
                nodes=nodes,
                use={} if before is None else before.use,
                waiting=None if before is None else before.waiting,
                waiting_by_reason={} if before is None else before.waiting_by_reason,
                recent=recent,
            )
            if self._use_at is None or now - self._use_at > USE_EVERY:
                after = replace(after, use=await read_use(connection, now))
                self._use_at = now
        if self._waiting_at is None or now - self._waiting_at > WAITING_EVERY:
            async with self._ledger.connection() as connection:
                waiting, reasons = await read_waiting(connection)
            after = replace(after, waiting=waiting, waiting_by_reason=reasons)
            self._waiting_at = now
        none_left = schedulers.connections == 0
        self._away = replace(
            self._away,
            scheduler=_since(self._away.scheduler, now, away=none_left),
            scheduler_hangs=hanging_since(schedulers.used_at, now),
        )
        if full:
            self._full_at = now
        self._event, self._marks = event, marks
        self._publish(before, after, now)

    def _publish(self, before: PageCluster | None, after: PageCluster, now: datetime) -> None:
        if before is None:
            self._state = replace(after, version=1)
            return
        names = changed_nodes(before, after, now)
        same = (
            not names
            and before.recent == after.recent
            and before.waiting == after.waiting
            and before.waiting_by_reason == after.waiting_by_reason
            and before.use == after.use
        )
        if same:
            self._state = after
            return
        self._state = replace(after, version=before.version + 1)
        self._changes.append((before.version + 1, names))

    def _age_s(self) -> float:
        assert self._read_at is not None
        return (self._clock() - self._read_at).total_seconds()

    def _nodes(self) -> int:
        return 0 if self._state is None else len(self._state.nodes)


async def _read_again(
    connection: Connection, before: Mapping[str, PageNode], marks: frozenset[ChangeMark]
) -> dict[str, PageNode]:
    """The nodes of before with the cards that these marks are of as they are now."""
    present = await read_bare_nodes(connection)
    new = present.keys() - before.keys()
    if new:
        present |= await read_nodes(connection, new)
    cards = await read_cards(connection, marks)
    return refreshed(before, present, {mark.uuid for mark in marks}, cards)


def _since(before: datetime | None, now: datetime, *, away: bool) -> datetime | None:
    """When it was first found away, for as long as it is."""
    return (before or now) if away else None
