"""The course of one decision, and the queue that writes it down after the reply.

`filtering.py` fills a `Course` as it goes; `DecisionQueue` turns it into a `Decision`, says in one
plain sentence what is short (the pod's event), and writes in batches. What is recorded is what was
used to decide: explain (`explaining.py`) answers from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import Conflict, Unavailable
from hamicommon.explain.moment import MomentEncoder
from hamicommon.explain.record import QuotaShort, detail_bytes, request_json
from hamicommon.explain.sentence import (
    Stock,
    placed_sentence,
    quota_sentence,
    refusal_sentence,
    stock_of,
)
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.refusal import Shortfalls
from hamicommon.placement.view import ClusterView, Frozen
from opentelemetry import trace

from hami_scheduler.announcing import FILTERING_FAILED, WHY, Announcer
from hami_scheduler.ports import Decision, DecisionLog, Json

logger = logging.getLogger(__name__)

# A minute of decisions at the budgeted 200 per second; beyond it records are dropped and counted.
QUEUE_SIZE = 12_000
BATCH = 64
# One transaction per batch instead of one per decision; explain may be this much behind.
GATHER_S = 0.05
RETRY_S = 1.0
RETRY_MAX_S = 5.0
# A placement keeps the cards of the nodes that were nearest to being chosen.
NODES_OF_A_PLACEMENT = 16
# Whole clusters that may wait to be written: 100 KB each at 1000 nodes. While the ledger is away
# nothing is granted, so the view hardly changes and many decisions share one.
MOST_MOMENTS = 256
TIDY_EVERY_S = 600.0

_COUNTED = re.compile(r"^\d+/\d+ ")


@dataclass(slots=True, kw_only=True)
class Course:
    """What happens while one pod is decided on; `outcome` is empty for pods that aren't ours.

    `phase_ms` has the parts of the time from the call to the answer's body: parse, place, reserve,
    answer; what it has beyond them (`total`) is refreshing the view and planning again.
    """

    pod: Json
    started: float
    """`time.perf_counter` when the call's body was complete."""
    decided_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    request: PodRequest | None = None
    candidates: int = 0
    outcome: str = ""
    allocation: Allocation | None = None
    message: str = ""
    reasons: Mapping[NodeName, str] = field(default_factory=dict)
    shortfalls: Shortfalls | None = None
    silent: tuple[NodeName, ...] = ()
    """Nodes that were not offered, because their agents are silent."""
    scores: NodeScores = field(default_factory=lambda: NodeScores.of({}))
    quota: QuotaShort | None = None
    frozen: Frozen | None = None
    view_version: int = 0
    phase_ms: dict[str, float] = field(default_factory=dict)
    trace_id: str = ""
    _lap_began: float = field(init=False)

    def __post_init__(self) -> None:
        self._lap_began = self.started

    @property
    def uid(self) -> PodUid:
        """Of the pod; empty when the caller sent none."""
        return PodUid(str(self._metadata.get("uid") or ""))

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return str(self._metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        """Of the pod."""
        return str(self._metadata.get("name") or "")

    @property
    def _metadata(self) -> Json:
        metadata = self.pod.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to the named phase."""
        self._lap_began = time.perf_counter()
        try:
            yield
        finally:
            self.lap(name)

    def lap(self, name: str) -> None:
        """Adds the time since the last phase ended (or the call came) to the named phase."""
        now = time.perf_counter()
        spent_ms = (now - self._lap_began) * 1000
        self._lap_began = now
        self.phase_ms[name] = round(self.phase_ms.get(name, 0.0) + spent_ms, 3)

    def refuse(self, reasons: Mapping[NodeName, str], shortfalls: Shortfalls | None) -> None:
        """No node fits."""
        self.outcome, self.reasons, self.shortfalls = "refused", reasons, shortfalls
        self.scores = NodeScores.of({})
        self.message = f"no available node, {self.candidates} nodes do not meet"

    def attributes(self) -> dict[str, str | int | list[str]]:
        """For the span of the decision."""
        found: dict[str, str | int | list[str]] = {
            "hami.pod.uid": self.uid,
            "hami.pod.name": f"{self.namespace}/{self.name}",
            "hami.candidates": self.candidates,
            "hami.outcome": self.outcome or "unmanaged",
        }
        if self.request is not None:
            found["hami.policy"] = f"{self.request.policy.node}/{','.join(self.request.policy.gpu)}"
        if self.allocation is not None:
            shares = [s.uuid for c in self.allocation.containers for s in c.shares]
            found |= {"hami.node": self.allocation.node, "hami.cards": [str(s) for s in shares]}
        if self.reasons:
            found["hami.reasons"] = sorted(set(self.reasons.values()))[:5]
        return found


class DecisionQueue:
    """A bounded queue in front of the decision log."""

    def __init__(self, log: DecisionLog, announcer: Announcer) -> None:
        self._log = log
        self._announcer = announcer
        self._queue: asyncio.Queue[Course] = asyncio.Queue(QUEUE_SIZE)
        self._encoder = MomentEncoder()
        self._stock = (-1, stock_of(()))
        """Of the inventory version."""
        self._whole: Frozen | None = None
        self._moments: Counter[int] = Counter()
        """By id: whole clusters that wait in the queue, and how many courses share each."""
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

    def add(self, course: Course) -> None:
        """Queues the record of a pod of ours; never waits, never raises."""
        if not course.outcome or not course.uid:
            return
        course.phase_ms["total"] = round((time.perf_counter() - course.started) * 1000, 3)
        span = trace.get_current_span().get_span_context()
        course.trace_id = f"{span.trace_id:032x}" if span.is_valid else ""
        if self._queue.full():
            self.dropped += 1
            return
        self._hold(course)
        self._queue.put_nowait(course)

    def _hold(self, course: Course) -> None:
        if course.frozen is None or len(course.frozen.rows) <= NODES_OF_A_PLACEMENT:
            return
        if id(course.frozen) not in self._moments and len(self._moments) >= MOST_MOMENTS:
            course.frozen = None
            self.dropped_moments += 1
            return
        self._moments[id(course.frozen)] += 1

    def _let_go(self, course: Course) -> None:
        key = id(course.frozen)
        if key in self._moments:
            self._moments[key] -= 1
            self._moments += Counter()

    async def run(self) -> None:
        """Writes until cancelled; what is queued then is written once more, if the ledger lets."""
        batch: list[Decision] = []
        try:
            while True:
                first = await self._queue.get()
                await asyncio.sleep(GATHER_S)
                batch = await self._decisions([first, *self._more(BATCH - 1)])
                await self._write_until_done(batch)
                batch = []
        finally:
            batch += [self._decision(course) for course in self._more(BATCH)]
            if batch:
                await self._write(batch)

    async def tidy(self, *, keep_days: int) -> None:
        """Drops what is old and what nothing refers to, every so often, until cancelled."""
        while True:
            try:
                await self._log.tidy(keep_days=keep_days)
            except (Unavailable, Conflict) as exc:
                logger.warning("old decisions stay", extra={"error": str(exc)})
            await asyncio.sleep(TIDY_EVERY_S)

    def _more(self, most: int) -> list[Course]:
        courses: list[Course] = []
        while len(courses) < most and not self._queue.empty():
            courses.append(self._queue.get_nowait())
        return courses

    async def _decisions(self, courses: list[Course]) -> list[Decision]:
        """Encoded beside the event loop, with the plain sentence said on each refused pod."""
        decisions = await asyncio.to_thread(lambda: [self._decision(course) for course in courses])
        for course, decision in zip(courses, decisions, strict=True):
            self._let_go(course)
            if course.outcome == "refused" and decision.summary:
                self._announcer.say(
                    FILTERING_FAILED,
                    decision.summary,
                    namespace=course.namespace,
                    name=course.name,
                    uid=course.uid,
                    series=WHY,
                )
        return decisions

    def _decision(self, course: Course) -> Decision:
        frozen = course.frozen
        if frozen is not None and self._stock[0] != frozen.inventory_version:
            cards = (usage.device for usages in frozen.usages for usage in usages)
            self._stock = (frozen.inventory_version, stock_of(cards))
        return decision_of(course, self._encoder, self._stock[1])

    async def _write_until_done(self, batch: list[Decision]) -> None:
        pause_s = RETRY_S
        while not await self._write(batch):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _write(self, batch: list[Decision]) -> bool:
        try:
            await self._log.record(batch)
        except (Unavailable, Conflict) as exc:
            logger.warning("decisions wait", extra={"count": len(batch), "error": str(exc)})
            return False
        return True


def decision_of(course: Course, encoder: MomentEncoder, stock: Stock) -> Decision:
    """The record of a course that is over."""
    request, allocation = course.request, course.allocation
    moment = None if course.frozen is None else encoder.encode(course.frozen)
    return Decision(
        pod_uid=course.uid,
        namespace=course.namespace,
        pod_name=course.name,
        outcome=course.outcome,
        node=None if allocation is None else allocation.node,
        allocation_id=None if allocation is None else allocation.id,
        candidates=course.candidates,
        request=request_json(request) if request else {},
        policy=asdict(request.policy) if request else {},
        reason_counts=reason_counts(course.reasons),
        detail=detail_bytes(
            reasons=course.reasons, scores=course.scores, quota=course.quota, moment=moment
        ),
        inventory=None if moment is None else moment.inventory,
        counters=None if moment is None else moment.counters,
        message=course.message,
        summary=_summary(course, stock),
        view_version=course.view_version,
        phase_ms=course.phase_ms,
        trace_id=course.trace_id,
        decided_at=course.decided_at,
    )


def _summary(course: Course, stock: Stock) -> str:
    request, allocation = course.request, course.allocation
    if request is None:
        return course.message
    if course.quota is not None:
        return quota_sentence(course.quota)
    if course.outcome == "refused" and course.shortfalls is not None:
        tables = course.shortfalls.tables
        asked = course.candidates - len(course.silent)
        if not asked:
            return f"{_silent_nodes(course)}, and there is no other"
        said = refusal_sentence(request, tables, stock, candidates=asked)
        return f"{said}; {_silent_nodes(course)}" if course.silent else said
    if allocation is not None:
        return placed_sentence(
            request, allocation.node, course.scores, candidates=course.candidates
        )
    return course.message


def _silent_nodes(course: Course) -> str:
    nodes = sorted(course.silent)
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    named = ", ".join(nodes[:3]) + more
    is_left = (
        "is left out: its node-agent is" if len(nodes) == 1 else "are left out: their agents are"
    )
    return f"{named} {is_left} silent"


def reason_counts(reasons: Mapping[NodeName, str]) -> dict[str, int]:
    """Reason word -> number of nodes that gave it.

    >>> reason_counts({"a": "1/2 CardInsufficientMemory, 1/2 CardNotHealth", "b": "node gone"})
    {'CardInsufficientMemory': 1, 'CardNotHealth': 1, 'node gone': 1}
    """
    counts: Counter[str] = Counter()
    # Thousands of nodes give few distinct reasons.
    for reason, nodes in Counter(reasons.values()).items():
        for part in reason.split(", "):
            counts[_COUNTED.sub("", part)] += nodes
    return dict(counts)
