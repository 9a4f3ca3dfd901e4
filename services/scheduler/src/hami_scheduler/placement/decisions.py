"""Record decisions after the answers.

`extender/filter.py` fills a `DecisionTrace` as it goes; `DecisionQueue` turns it into a
`DecisionRow`, states the shortage in one plain sentence (the pod's event), and writes in batches.
The record has the data that the decision used: `api/explain.py` answers from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.explain.record import MomentEncoder, QuotaShort, detail_bytes, request_json
from hamicommon.explain.sentences import (
    CardStock,
    placed_sentence,
    quota_sentence,
    refusal_sentence,
    stock_of,
)
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.unschedulable import Shortfalls
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage
from opentelemetry.trace import SpanContext, get_current_span

from hami_scheduler.pod_events import FILTERING_FAILED, WHY, Announcer
from hami_scheduler.ports.ledger import DecisionLog, DecisionRow

MAX_MESSAGE_LENGTH = 1024
"""Maximum characters of a message, as in events."""
NO_SCORES = NodeScores.of({})
"""Scores of a decision that was not made; shared, as it is immutable."""


@dataclass(slots=True, kw_only=True)
class DecisionTrace:
    """Record of a decision while it is made; `outcome` is empty for pods that are not ours.

    `phase_ms` has the parts of the time from the call to the answer's body: parse, place,
    answer. The rest of `total` is spent on refreshing the view and planning again.
    """

    pod: Json
    started: float
    """Time at which the call's body was complete (`time.perf_counter`)."""
    decided_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    request: PodRequest | None = None
    candidates: int = 0
    outcome: str = ""
    allocation: Allocation | None = None
    kept: bool = False
    """Whether an existing allocation was reused."""
    message: str = ""
    reasons: Mapping[NodeName, str] = field(default_factory=dict)
    shortfalls: Shortfalls | None = None
    silent: tuple[NodeName, ...] = ()
    """Nodes that were left out because their agents are silent."""
    scores: NodeScores = field(default_factory=lambda: NO_SCORES)
    quota: QuotaShort | None = None
    frozen: Frozen | None = None
    view_version: int = 0
    phase_ms: dict[str, float] = field(default_factory=dict)
    trace_id: str = ""
    is_recorded: bool = True
    """Whether it is to be recorded; false for an answer that was recorded when first given."""
    group_key: str | None = None
    group_size: int | None = None
    _lap_began: float = field(init=False)

    def __post_init__(self) -> None:
        self._lap_began = self.started

    @property
    def uid(self) -> PodUid:
        """Return the pod's uid; empty if the caller sent none."""
        return PodUid(str(self._metadata.get("uid") or ""))

    @property
    def namespace(self) -> str:
        """Return the pod's namespace."""
        return str(self._metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self._metadata.get("name") or "")

    @property
    def pod_ref(self) -> PodRef:
        """Return the pod's names."""
        return PodRef(self.namespace, self.name, self.uid)

    @property
    def _metadata(self) -> Json:
        metadata = self.pod.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the named phase."""
        self._lap_began = time.perf_counter()
        try:
            yield
        finally:
            self.lap(name)

    def lap(self, name: str) -> None:
        """Add the time since the end of the last phase, or the call, to the named phase."""
        now = time.perf_counter()
        spent_ms = (now - self._lap_began) * 1000
        self._lap_began = now
        self.phase_ms[name] = round(self.phase_ms.get(name, 0.0) + spent_ms, 3)

    def mark_answered(self) -> None:
        """Record that the response's body is ready."""
        self.lap("answer")
        self.phase_ms["total"] = round((self._lap_began - self.started) * 1000, 3)

    def refuse(self, reasons: Mapping[NodeName, str], shortfalls: Shortfalls | None) -> None:
        """Record that no node fits."""
        self.outcome, self.reasons, self.shortfalls = "refused", reasons, shortfalls
        self.scores = NO_SCORES
        self.message = f"no available node, {self.candidates} nodes do not meet"

    def attributes(self) -> dict[str, str | int | list[str]]:
        """Return the attributes of the decision's span."""
        found: dict[str, str | int | list[str]] = {
            **telemetry.pod_attributes(clip(self.namespace), clip(self.name), self.uid),
            "hami.candidates": self.candidates,
            "hami.outcome": self.outcome or "unmanaged",
        }
        if self.request is not None:
            policy = self.request.policy
            found["hami.policy"] = clip(f"{policy.node}/{','.join(policy.gpu)}")
        if self.allocation is not None:
            shares = [s.uuid for c in self.allocation.containers for s in c.shares]
            found |= {"k8s.node.name": self.allocation.node, "hami.cards": [str(s) for s in shares]}
        if self.reasons:
            found["hami.reasons"] = sorted(set(self.reasons.values()))[:5]
        return found


def group_trace(
    kind: str, namespace: str, name: str, *, size: int, is_placed: bool, message: str
) -> DecisionTrace:
    """Return the record of one decision about all pods of a `group` or `workload`."""
    key = f"{kind}/{namespace}/{name}"
    return DecisionTrace(
        pod={"metadata": {"uid": key, "namespace": namespace}},
        started=time.perf_counter(),
        outcome="placed" if is_placed else "refused",
        kept=True,  # kube-scheduler may ask for the same placement ten times a second
        message=clip(message, MAX_MESSAGE_LENGTH),
        group_key=key,
        group_size=size,
    )


_COUNTED = re.compile(r"^\d+/\d+ ")


def decision_of(trace: DecisionTrace, encoder: MomentEncoder, stock: CardStock) -> DecisionRow:
    """Return the record of a finished trace."""
    request, allocation = trace.request, trace.allocation
    moment = None if trace.frozen is None else encoder.encode(trace.frozen)
    is_placed = trace.outcome == "placed"
    return DecisionRow(
        pod_uid=trace.uid,
        namespace=trace.namespace,
        pod_name=trace.name,
        outcome=trace.outcome,
        node=None if allocation is None else allocation.node,
        allocation_id=None if allocation is None else allocation.id,
        kept=trace.kept,
        candidates=trace.candidates,
        request=request_json(request) if request else {},
        policy=asdict(request.policy) if request else {},
        reason_counts=reason_counts(trace.reasons),
        detail=detail_bytes(
            reasons=trace.reasons,
            scores=trace.scores,
            quota=trace.quota,
            moment=moment,
            keep_counters=is_placed,
        ),
        inventory=None if moment is None else moment.inventory,
        counters=None if moment is None or is_placed else moment.counters,
        message=trace.message,
        summary=_summary(trace, stock),
        view_version=trace.view_version,
        phase_ms=trace.phase_ms,
        trace_id=trace.trace_id,
        decided_at=trace.decided_at,
        group_key=trace.group_key,
        group_size=trace.group_size,
    )


def _summary(trace: DecisionTrace, stock: CardStock) -> str:
    request, allocation = trace.request, trace.allocation
    if request is None:
        return trace.message
    if trace.quota is not None:
        return quota_sentence(trace.quota)
    if trace.outcome == "refused" and trace.shortfalls is not None:
        tables = trace.shortfalls.tables
        asked = trace.candidates - len(trace.silent)
        if not asked:
            return f"{_silent_nodes(trace)}, and there is no other node"
        sentence = refusal_sentence(request, tables, stock, candidates=asked)
        return f"{sentence}; {_silent_nodes(trace)}" if trace.silent else sentence
    if allocation is not None:
        return placed_sentence(request, allocation.node, trace.scores, candidates=trace.candidates)
    return trace.message


def _silent_nodes(trace: DecisionTrace) -> str:
    nodes = sorted(trace.silent)
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    named = ", ".join(nodes[:3]) + more
    is_left = (
        "is left out: its node-agent is" if len(nodes) == 1 else "are left out: their agents are"
    )
    return f"{named} {is_left} silent"


def reason_counts(reasons: Mapping[NodeName, str]) -> dict[str, int]:
    """Return the number of nodes per reason.

    >>> reason_counts({"a": "1/2 CardInsufficientMemory, 1/2 CardNotHealth", "b": "node gone"})
    {'CardInsufficientMemory': 1, 'CardNotHealth': 1, 'node gone': 1}
    """
    counts: Counter[str] = Counter()
    # Thousands of nodes give few distinct reasons.
    for reason, nodes in Counter(reasons.values()).items():
        for part in reason.split(", "):
            counts[_COUNTED.sub("", part)] += nodes
    return dict(counts)


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


@dataclass(eq=False)
class DecisionQueue:
    """Bounded queue of decisions to be written.

    `until_idle` (`BackgroundQueue`) decides when to write.
    """

    log: DecisionLog
    announcer: Announcer
    _: KW_ONLY
    until_idle: Callable[[], Awaitable[None]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)

    def __post_init__(self) -> None:
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
        """Return the number of decisions that are not written yet."""
        return self._queue.qsize()

    def frozen(self, view: ClusterView, scores: NodeScores) -> Frozen:
        """Return a copy of the cards for the record: of the best nodes, or of all if none fits."""
        if scores:
            return view.frozen([node for node, _ in scores.best(NODES_OF_A_PLACEMENT)])
        if self._whole is None or self._whole.version != view.version:
            self._whole = view.frozen()
        return self._whole

    def add(self, trace: DecisionTrace, span: SpanContext | None = None) -> None:
        """Queue the record of a decision; never waits, never raises.

        `span`: the decision's; the current one when None.
        """
        if not trace.outcome or not trace.uid or not trace.is_recorded:
            return
        if "total" not in trace.phase_ms:
            # It has no call of its own: placed at /bind, or the result of an answer.
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
        """Write queued decisions until cancelled, then the remaining ones once."""
        traces: list[DecisionTrace] = []
        try:
            while True:
                traces.append(await self._queue.get())
                await self.until_idle()
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
        """Wait for the encoding thread; if cancelled, its batch is left to the next call."""
        assert self._encoding is not None
        self._batch = await asyncio.shield(self._encoding)
        self._encoding = None

    def _more(self, most: int) -> list[DecisionTrace]:
        traces: list[DecisionTrace] = []
        while len(traces) < most and not self._queue.empty():
            traces.append(self._queue.get_nowait())
        return traces

    async def _encode(self, traces: list[DecisionTrace]) -> list[DecisionRow]:
        """Encode in a thread, and show the sentence on each refused pod."""
        encoded = await asyncio.to_thread(self._encode_all, traces)
        for trace in traces:
            self._let_go(trace)
        for trace, decision in encoded:
            if trace.outcome == "refused" and decision.summary and trace.name:
                self.announcer.announce(
                    trace.pod_ref, FILTERING_FAILED, decision.summary, series=WHY
                )
        return [decision for _, decision in encoded]

    def _encode_all(self, traces: list[DecisionTrace]) -> list[tuple[DecisionTrace, DecisionRow]]:
        """Return the decisions that can be encoded."""
        found: list[tuple[DecisionTrace, DecisionRow]] = []
        for trace in traces:
            with self.bulkhead.item("decisions", trace.uid):
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
        """Write a batch; return False if the ledger is unavailable or another writer won."""
        try:
            await self.log.record(batch)
        except Unavailable as exc:
            self._outage.on_failure(exc)
            return False
        except Exception as exc:  # noqa: BLE001 - of one row, which is found by writing each alone
            logger.warning(
                "Failed to write decisions together, writing them one by one",
                extra={"count": len(batch), "error": clip(f"{type(exc).__name__}: {exc}")},
            )
            return await self._write_each(batch)
        self._outage.on_success()
        return True

    async def _write_each(self, batch: list[DecisionRow]) -> bool:
        """Write each row separately; those that the ledger refuses are dropped and counted.

        Finished rows are removed from the batch.
        """
        while batch:
            row = batch[0]
            try:
                with self.bulkhead.item("decisions", row.pod_uid):
                    await self._record_alone(row)
            except Unavailable as exc:
                self._outage.on_failure(exc)
                return False
            except HamiError as exc:
                self.dropped += 1
                logger.warning(
                    "Dropped a decision", extra={"pod_uid": row.pod_uid, "error": clip(str(exc))}
                )
            batch.remove(row)
        self._outage.on_success()
        return True

    async def _record_alone(self, row: DecisionRow) -> None:
        for _ in range(MAX_RACES):
            with contextlib.suppress(Conflict):
                return await self.log.record([row])
            await asyncio.sleep(RETRY_S)
        return await self.log.record([row])
