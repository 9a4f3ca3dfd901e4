"""The use cases: store a usage report, sum up finished buckets, keep the days, read the ledger.

A report is acknowledged on the bus only when Postgres has it, so while Postgres is away the stream
itself is the buffer (bounded by its age and size); the agents' numbering shows what it lost.
Reports that came together are one write. The sums are made from what is stored, so a crash between
both only means summing up again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import chain

from hamicommon.bus.reader import read
from hamicommon.clipping import clip
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.events import Usage

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.domain.rollup import COARSE_S, DAY_S, FINE_S, bucket_of
from hami_metrics.domain.samples import samples_of
from hami_metrics.domain.sequences import SequenceBook
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.ports import Ledger, UsageStore

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]

# The stream keeps an hour; an agent may have buffered some minutes before that.
CATCH_UP = timedelta(hours=2)


class UsageHistory:
    """Usage reports to samples to sums."""

    def __init__(
        self, store: UsageStore, instruments: MetricsInstruments, clock: Clock, *, grace_s: float
    ) -> None:
        self._store = store
        self._instruments = instruments
        self._clock = clock
        self._grace = timedelta(seconds=grace_s)
        self._book = SequenceBook()
        self._lost_counted = 0
        self._unsummed: set[tuple[str, datetime]] = set()
        self._caught_up = False

    async def ingest(self, bodies: Sequence[bytes]) -> list[Exception | None]:
        """Stores the reports that came together; repeating one changes nothing.

        For each None, or why it is not stored: InvalidRequest (dead letter), Unavailable (the bus
        delivers it again). One that Postgres does not take keeps no other from being stored.
        """
        answers: list[Exception | None] = [None] * len(bodies)
        read_well: dict[int, Usage] = {}
        for number, body in enumerate(bodies):
            try:
                read_well[number] = read(Usage, body, "usage report")
            except InvalidRequest as exc:
                answers[number] = exc
            # A batch is many thousand samples: pages and probes are answered between its reports.
            await asyncio.sleep(0)
        try:
            await self._store_all(list(read_well.values()))
        except Unavailable as exc:
            for number in read_well:
                answers[number] = exc
        except Exception as exc:  # noqa: BLE001 - each has its own answer, or this one
            for number, usage in read_well.items():
                alone = exc if len(read_well) == 1 else await self._store_alone(usage)
                answers[number] = alone
        return answers

    async def _store_alone(self, usage: Usage) -> Exception | None:
        try:
            await self._store_all([usage])
        except Exception as exc:  # noqa: BLE001 - settled by the bus
            return exc
        return None

    async def _store_all(self, reports: Sequence[Usage]) -> None:
        """All of them or none."""
        by_report = [samples_of(usage) for usage in reports]
        count = sum(len(samples) for samples in by_report)
        try:
            new = await self._store.write(list(chain.from_iterable(by_report)))
        except Unavailable:
            self._instruments.store_failures.labels("samples").inc()
            raise
        self._instruments.samples.labels("stored").inc(new)
        self._instruments.samples.labels("repeated").inc(count - new)
        self._instruments.last_ingest.set(self._clock())
        for usage in reports:
            if new:
                moments = {usage.sampled_at, *usage.earlier_rounds}
                self._unsummed |= {(usage.node, bucket_of(at, FINE_S)) for at in moments}
            self._book.note(usage.node, usage.agent_id, usage.sequence, now=self._clock())
        self._count()

    async def sum_up(self) -> int:
        """Sums up every finished bucket that has new samples; returns how many.

        Raises: Unavailable; what was not summed up stays to be done.
        """
        now = self._clock()
        self._book.give_up(now=now)
        self._count()
        if not self._caught_up:
            since = bucket_of(now - CATCH_UP, FINE_S)
            self._unsummed.update(await self._store.unsummed(since))
            self._caught_up = True
        latest = now - self._grace - timedelta(seconds=FINE_S)
        done = 0
        for node, start in sorted(self._unsummed, key=lambda item: (item[1], item[0])):
            if start > latest:
                break
            # Taken off first: a sample that comes in between puts it on the list again.
            self._unsummed.discard((node, start))
            try:
                # One that fails in an unknown way is left out until a sample comes for it.
                with self._instruments.bulkhead.item("rollups", f"{node} {start.isoformat()}"):
                    await self._store.sum_up(node, start)
                    self._instruments.rollups.labels("5m").inc()
                    done += 1
            except HamiError as exc:
                self._unsummed.add((node, start))
                self._instruments.store_failures.labels("rollups").inc()
                if isinstance(exc, Unavailable):
                    raise
                logger.warning(
                    "bucket not summed up", extra={"node": node, "error": clip(str(exc))}
                )
        self._instruments.unsummed_buckets.set(len(self._unsummed))
        return done

    def _count(self) -> None:
        self._instruments.missing_reports.set(self._book.missing)
        lost = self._book.lost - self._lost_counted
        if lost:
            self._lost_counted = self._book.lost
            self._instruments.lost_reports.inc(lost)
            logger.error("usage reports lost", extra={"reports": lost, "in_all": self._book.lost})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRetention:
    """How many days are kept: samples, 5-minute sums, hourly sums, sums of days."""

    raw_days: int
    fine_days: int
    coarse_days: int
    day_days: int


async def keep_days(store: UsageStore, retention: UsageRetention, *, now: datetime) -> list[date]:
    """Makes room for the days to come, forgets what is too old; returns the raw days dropped.

    Raises: Unavailable, Conflict.
    """
    dropped = await store.keep_samples(now.date(), retention.raw_days)
    await store.forget_rollups(FINE_S, now - timedelta(days=retention.fine_days))
    coarse = now - timedelta(days=retention.coarse_days)
    await store.forget_rollups(COARSE_S, coarse)
    await store.forget_namespaces(COARSE_S, coarse)
    days = now - timedelta(days=retention.day_days)
    await store.forget_namespaces(DAY_S, days)
    await store.forget_capacity(COARSE_S, coarse)
    await store.forget_capacity(DAY_S, days)
    return dropped


class LedgerFigures:
    """The newest reading of the ledger, as long as it is fresh enough to be shown."""

    def __init__(self, ledger: Ledger, clock: Clock, *, stale_s: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._stale_s = stale_s
        self._snapshot: ClusterSnapshot | None = None
        self._read_at: datetime | None = None

    async def refresh(self) -> None:
        """Reads the ledger. Raises: Unavailable; the last reading stays until it is stale."""
        self._snapshot = await self._ledger.snapshot()
        self._read_at = self._clock()

    @property
    def age_s(self) -> float:
        """Seconds since the last reading; NaN before the first."""
        if self._read_at is None:
            return float("nan")
        return (self._clock() - self._read_at).total_seconds()

    def newest(self) -> ClusterSnapshot | None:
        """The last reading, or None when there is none or it is stale."""
        return self._snapshot if self.age_s <= self._stale_s else None

    def not_ready_reasons(self) -> list[str]:
        """Why there is nothing to serve, one sentence each."""
        if self.newest() is not None:
            return []
        if self._read_at is None:
            return ["the ledger was not read yet"]
        return [f"the last reading of the ledger is {self.age_s:.0f} s old"]
