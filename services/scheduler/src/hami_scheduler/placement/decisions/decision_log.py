"""The queue that writes decisions down after the reply.

`extender/filter.py` fills a `DecisionTrace` as it goes; `DecisionQueue` turns it into a
`DecisionRow`, shows in one plain sentence what is short (the pod's event),
and writes in batches. What is recorded is what was used to decide: `api/explain.py` answers from
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from hamicommon.clipping import clip
from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.explain.record import MomentEncoder
from hamicommon.explain.sentences import stock_of
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.node_scores import NodeScores
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage
from opentelemetry.trace import SpanContext, get_current_span

from hami_scheduler.placement.decisions.decision import DecisionTrace, decision_of
from hami_scheduler.pod_events import FILTERING_FAILED, WHY, Announcer
from hami_scheduler.ports.ledger import DecisionLog, DecisionRow

logger = logging.getLogger(__name__)

# A minute of decisions at the budgeted 200 per second; beyond it records are dropped and counted.
QUEUE_SIZE = 12_000
BATCH = 64
"""Decisions per transaction."""
RETRY_S = 1.0
MAX_RETRY_S = 5.0
# A placement keeps the cards of the nodes that were nearest to being chosen.
NODES_OF_A_PLACEMENT = 16
# Whole clusters that may wait to be written: 100 KB each at 1000 nodes. While the ledger is
# unavailable nothing is granted, so the view hardly changes and many decisions share one.
MAX_MOMENTS = 256
# Races that one row may lose before it is dropped.
MAX_RACES = 3


class DecisionQueue:
    """A bounded queue in front of the decision log."""

    def __init__(
        self,
        log: DecisionLog,
        announcer: Announcer,
        *,
        until_idle: Callable[[], Awaitable[None]],
        bulkhead: Bulkhead | None = None,
    ) -> None:
        """Create an empty queue; `until_idle` (`BackgroundQueue`) decides when to write."""
        self._until_idle = until_idle
        self._bulkhead = bulkhead or Bulkhead()
        self._log = log
        self._announcer = announcer
        self._queue: asyncio.Queue[DecisionTrace] = asyncio.Queue(QUEUE_SIZE)
        self._encoder = MomentEncoder()
        self._encoding: asyncio.Future[list[DecisionRow]] | None = None
        """The batch that a thread encodes; the only one that uses the encoder."""
        self._batch: list[DecisionRow] = []
        """Encoded and not yet written."""
        self._stock = (-1, stock_of(()))
        """Inventory version, and the stock of it."""
        self._whole: Frozen | None = None
        self._moments: Counter[int] = Counter()
        """By id: whole clusters that wait in the queue, and how many traces share each."""
        self._outage = Outage(
            logger,
            failed="Retrying to write decisions: the ledger is unavailable",
            again="Writing decisions again",
            starts_within_s=0.0,
        )
        self.dropped = 0
        """Decisions that found the queue full."""
        self.dropped_moments = 0
        """Decisions that were recorded without their cards, because too many of those waited."""

    @property
    def waiting(self) -> int:
        """Decisions not yet written."""
        return self._queue.qsize()

    def frozen(self, view: ClusterView, scores: NodeScores) -> Frozen:
        """The cards as they are, for the record: of the best nodes, or of all when none fits."""
        if scores:
            return view.frozen([node for node, _ in scores.best(NODES_OF_A_PLACEMENT)])
        if self._whole is None or self._whole.version != view.version:
            self._whole = view.frozen()
        return self._whole

    def add(self, trace: DecisionTrace, span: SpanContext | None = None) -> None:
        """Queues the record of a pod of ours; never waits, never raises.

        `span`: the decision's; the current one when None.
        """
        if not trace.outcome or not trace.uid or not trace.is_recorded:
            return
        if "total" not in trace.phase_ms:
            # Of no call of its own: placed at /bind, or what became of an answer.
            trace.phase_ms["total"] = round((time.perf_counter() - trace.started) * 1000, 3)
        if span is None:
            span = get_current_span().get_span_context()
        trace.trace_id = f"{span.trace_id:032x}" if span.is_valid else ""
        if self._queue.full():
            self.dropped += 1
            return
        self._hold(trace)
        self._queue.put_nowait(trace)

    def _hold(self, trace: DecisionTrace) -> None:
        if trace.frozen is None or len(trace.frozen.rows) <= NODES_OF_A_PLACEMENT:
            return
        if id(trace.frozen) not in self._moments and len(self._moments) >= MAX_MOMENTS:
            trace.frozen = None
            self.dropped_moments += 1
            return
        self._moments[id(trace.frozen)] += 1

    def _let_go(self, trace: DecisionTrace) -> None:
        key = id(trace.frozen)
        if key in self._moments:
            self._moments[key] -= 1
            self._moments += Counter()

    async def run(self) -> None:
        """Write queued decisions until cancelled, and then once more what is still queued."""
        traces: list[DecisionTrace] = []
        try:
            while True:
                traces.append(await self._queue.get())
                await self._until_idle()
                while traces := traces + self._more(BATCH - len(traces)):
                    self._encoding = asyncio.ensure_future(self._encode(traces))
                    traces = []
                    await self._take_encoded()
                    await self._write_until_done(self._batch)
        finally:
            if self._encoding is not None:
                await self._take_encoded()
            self._batch += await self._encode(traces + self._more(QUEUE_SIZE))
            if self._batch:
                await self._write(self._batch)

    async def _take_encoded(self) -> None:
        """Wait for the thread; a cancellation leaves its batch to the next call."""
        assert self._encoding is not None
        self._batch = await asyncio.shield(self._encoding)
        self._encoding = None

    def _more(self, most: int) -> list[DecisionTrace]:
        traces: list[DecisionTrace] = []
        while len(traces) < most and not self._queue.empty():
            traces.append(self._queue.get_nowait())
        return traces

    async def _encode(self, traces: list[DecisionTrace]) -> list[DecisionRow]:
        """Encode in a thread, and show the plain sentence on each refused pod."""
        encoded = await asyncio.to_thread(self._encoded, traces)
        for trace in traces:
            self._let_go(trace)
        for trace, decision in encoded:
            if trace.outcome == "refused" and decision.summary:
                self._announcer.announce(
                    trace.pod_ref, FILTERING_FAILED, decision.summary, series=WHY
                )
        return [decision for _, decision in encoded]

    def _encoded(self, traces: list[DecisionTrace]) -> list[tuple[DecisionTrace, DecisionRow]]:
        """Return the decisions that can be encoded."""
        found: list[tuple[DecisionTrace, DecisionRow]] = []
        for trace in traces:
            with self._bulkhead.item("decisions", trace.uid):
                found.append((trace, self._decision(trace)))
        return found

    def _decision(self, trace: DecisionTrace) -> DecisionRow:
        frozen = trace.frozen
        if frozen is not None and self._stock[0] != frozen.inventory_version:
            cards = (usage.device for usages in frozen.usages for usage in usages)
            self._stock = (frozen.inventory_version, stock_of(cards))
        return decision_of(trace, self._encoder, self._stock[1])

    async def _write_until_done(self, batch: list[DecisionRow]) -> None:
        backoff = Backoff(RETRY_S, MAX_RETRY_S)
        while not await self._write(batch):
            pause_s = backoff.next_s()
            await asyncio.sleep(pause_s)
        batch.clear()

    async def _write(self, batch: list[DecisionRow]) -> bool:
        """False when the ledger is unavailable, or lost a race with another writer of one row."""
        try:
            await self._log.record(batch)
        except Unavailable as exc:
            self._outage.failed(exc)
            return False
        except Exception as exc:  # noqa: BLE001 - of one row, which is found by writing each alone
            logger.warning(
                "Writing decisions one by one",
                extra={"count": len(batch), "error": clip(f"{type(exc).__name__}: {exc}")},
            )
            return await self._write_each(batch)
        self._outage.worked()
        return True

    async def _write_each(self, batch: list[DecisionRow]) -> bool:
        """Each row by itself; what the ledger refuses is dropped and counted.

        What is done leaves the batch.
        """
        while batch:
            row = batch[0]
            try:
                with self._bulkhead.item("decisions", row.pod_uid):
                    await self._record_alone(row)
            except Unavailable as exc:
                self._outage.failed(exc)
                return False
            except HamiError as exc:
                self.dropped += 1
                logger.warning(
                    "Dropped a decision", extra={"pod_uid": row.pod_uid, "error": clip(str(exc))}
                )
            batch.remove(row)
        self._outage.worked()
        return True

    async def _record_alone(self, row: DecisionRow) -> None:
        for _ in range(MAX_RACES):
            with contextlib.suppress(Conflict):
                return await self._log.record([row])
            await asyncio.sleep(RETRY_S)
        return await self._log.record([row])
