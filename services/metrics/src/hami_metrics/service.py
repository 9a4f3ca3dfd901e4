"""Use cases: store usage reports, sum up buckets, apply retention, read the ledger.

A report is acknowledged on the bus only when Postgres has stored it, so while Postgres is
unavailable the stream is the buffer (bounded by its age and size); the agents' numbering shows its
losses. Reports that arrive together are one write. Sums are computed from stored samples, so after
a crash between the two they are only computed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from hamicommon.bus.client import Message
from hamicommon.bus.reader import read_of_node
from hamicommon.clipping import clip
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.events import USAGE_MAX_ROWS, Usage
from hamicommon.process.rate_limit import RateLimit

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.domain.samples import (
    COARSE_S,
    DAY_S,
    FINE_S,
    NodePod,
    Sample,
    bucket_of,
    samples_of,
)
from hami_metrics.domain.sequences import SequenceBook
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.ports import Ledger, UsageStore

logger = logging.getLogger(__name__)

Clock = Callable[[], datetime]

# The stream keeps an hour; an agent may have buffered some minutes before that.
CATCH_UP = timedelta(hours=2)
ROWS_PER_MINUTE = 25_000
"""Rate of a node's samples per minute, after a burst of one largest report.

16 cards of 10 slices need 10,560 when they are sampled every second, 2,112 by default; 16 cards of
100 slices 19,392 by default.
"""
MAX_WRITE_ROWS = 20_000
"""Number of samples in a write above which no further report joins it."""


@dataclass(frozen=True, slots=True)
class _Report:
    usage: Usage
    samples: list[Sample]


class UsageHistory:
    """History of usage: reports, samples and sums."""

    def __init__(
        self, store: UsageStore, instruments: MetricsInstruments, clock: Clock, *, grace_s: float
    ) -> None:
        self._store = store
        self._instruments = instruments
        self._clock = clock
        self._grace = timedelta(seconds=grace_s)
        self._book = SequenceBook()
        self._budget = RateLimit(burst=USAGE_MAX_ROWS, per_s=ROWS_PER_MINUTE / 60)
        self._turn = asyncio.Lock()
        self._lost_counted = 0
        self._unsummed: set[tuple[str, datetime]] = set()
        self._caught_up = False

    async def ingest(self, messages: Sequence[Message]) -> list[Exception | None]:
        """Store reports that arrived together; repeated ones change nothing.

        For each None, or why it is not stored: InvalidRequest (dead letter), Unavailable (the bus
        delivers it again). One that Postgres does not take keeps no other from being stored. A node
        reports on its own cards, and on containers of pods that hold a grant there.
        """
        answers: list[Exception | None] = [None] * len(messages)
        # One batch at a time: all of them together have samples of `MAX_WRITE_ROWS` and of one
        # report in memory.
        async with self._turn:
            found: dict[int, _Report] = {}
            for number, message in enumerate(messages):
                try:
                    found[number] = self._read(message)
                except InvalidRequest as exc:
                    answers[number] = exc
                if sum(len(report.samples) for report in found.values()) >= MAX_WRITE_ROWS:
                    await self._store_found(found, answers)
                    found = {}
                # A batch is many thousand samples: pages and probes are answered in between.
                await asyncio.sleep(0)
            await self._store_found(found, answers)
        return answers

    def _read(self, message: Message) -> _Report:
        """Parse a usage report. Raises: InvalidRequest, also if the node reports too much."""
        usage = read_of_node(Usage, message.subject, message.data, "usage report")
        # By the bus's time: an hour of reports that is read in a minute counts as an hour.
        at_s = message.received_at.timestamp()
        if self._budget.take(usage.node, usage.rows, at_s=at_s) is None:
            raise InvalidRequest(
                f"usage report: node {usage.node} has reported more than {ROWS_PER_MINUTE} samples "
                "a minute; it is not stored"
            )
        return _Report(usage, samples_of(usage, received_at=message.received_at))

    async def _store_found(
        self, found: Mapping[int, _Report], answers: list[Exception | None]
    ) -> None:
        try:
            await self._store_all(list(found.values()))
        except Unavailable as exc:
            for number, report in found.items():
                answers[number] = exc
                self._budget.give_back(report.usage.node, report.usage.rows)
        except Exception as exc:  # noqa: BLE001 - each has its own answer, or this one
            for number, report in found.items():
                answers[number] = exc if len(found) == 1 else await self._store_alone(report)
                if answers[number] is not None:
                    self._budget.give_back(report.usage.node, report.usage.rows)

    async def _store_alone(self, report: _Report) -> Exception | None:
        try:
            await self._store_all([report])
        except Exception as exc:  # noqa: BLE001 - settled by the bus
            return exc
        return None

    async def _store_all(self, reports: Sequence[_Report]) -> None:
        """Store all reports or none."""
        samples = [sample for report in reports for sample in report.samples]
        try:
            ungranted = await self._ungranted_pods(samples)
            kept = samples
            if ungranted:
                kept = [one for one in samples if one.series.pod not in ungranted]
            new = await self._store.write(kept)
        except Unavailable:
            self._instruments.store_failures.labels("samples").inc()
            raise
        self._instruments.samples.labels("stored").inc(new)
        self._instruments.samples.labels("repeated").inc(len(kept) - new)
        self._instruments.samples.labels("ungranted").inc(len(samples) - len(kept))
        self._instruments.last_ingest.set(self._clock())
        if new:
            moments = {(one.series.node, one.sampled_at) for one in kept}
            self._unsummed |= {(node, bucket_of(at, FINE_S)) for node, at in moments}
        for report in reports:
            usage = report.usage
            self._book.note(usage.node, usage.agent_id, usage.sequence, now=self._clock())
        self._count()

    async def _ungranted_pods(self, samples: Iterable[Sample]) -> set[NodePod]:
        """Return pods of the samples that have no grant on their node."""
        pods = {one.series.pod for one in samples if one.series.pod_uid}
        return pods - await self._store.granted_pods(pods, self._clock() - CATCH_UP)

    async def sum_up(self) -> int:
        """Sum up every finished bucket with new samples; return their number.

        Raises: Unavailable; the next call sums up the remaining buckets.
        """
        now = self._clock()
        self._book.give_up(now=now)
        self._count()
        if not self._caught_up:
            since = bucket_of(now - CATCH_UP, FINE_S)
            self._unsummed.update(await self._store.unsummed_buckets(since))
            self._caught_up = True
        latest = now - self._grace - timedelta(seconds=FINE_S)
        done = 0
        for node, start in sorted(self._unsummed, key=lambda item: (item[1], item[0])):
            if start > latest:
                break
            # Removed first: a sample that arrives in between adds it again.
            self._unsummed.discard((node, start))
            try:
                # After an unknown failure a bucket is skipped until a sample arrives for it.
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
                    "Failed to sum up a bucket", extra={"node": node, "error": clip(str(exc))}
                )
        self._instruments.unsummed_buckets.set(len(self._unsummed))
        return done

    def _count(self) -> None:
        self._instruments.missing_reports.set(self._book.missing)
        lost = self._book.lost - self._lost_counted
        if lost:
            self._lost_counted = self._book.lost
            self._instruments.lost_reports.inc(lost)
            logger.error("Missed usage reports", extra={"reports": lost, "in_all": self._book.lost})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRetention:
    """Days for which samples and each kind of sums are kept."""

    raw_days: int
    fine_days: int
    coarse_days: int
    day_days: int


async def keep_days(store: UsageStore, retention: UsageRetention, *, now: datetime) -> list[date]:
    """Create coming partitions and delete old data; return the dropped days of samples.

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
    """Newest snapshot of the ledger, while it is fresh enough to be exported."""

    def __init__(self, ledger: Ledger, clock: Clock, *, stale_s: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._stale_s = stale_s
        self._snapshot: ClusterSnapshot | None = None
        self._read_at: datetime | None = None

    async def refresh(self) -> None:
        """Read the ledger. Raises: Unavailable; the last snapshot stays until it is stale."""
        self._snapshot = await self._ledger.snapshot()
        self._read_at = self._clock()

    @property
    def age_s(self) -> float:
        """Return the seconds since the last reading; NaN before the first."""
        if self._read_at is None:
            return float("nan")
        return (self._clock() - self._read_at).total_seconds()

    def newest(self) -> ClusterSnapshot | None:
        """Return the last snapshot; None if there is none or it is stale."""
        return self._snapshot if self.age_s <= self._stale_s else None

    def not_ready_reasons(self) -> list[str]:
        """Return why there is nothing to export, one sentence each."""
        if self.newest() is not None:
            return []
        if self._read_at is None:
            return ["the ledger has not been read yet"]
        return [f"the last reading of the ledger is {self.age_s:.0f} s old"]
