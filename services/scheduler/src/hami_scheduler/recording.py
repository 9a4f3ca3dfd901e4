"""The course of one decision, and the queue that writes it down after the reply.

`filtering.py` fills a `Course` as it goes; `DecisionQueue` turns it into a `Decision` and writes in
batches. What is recorded is what was used to decide: explain answers from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import Conflict, Unavailable
from hamicommon.placement.refusal import Shortfalls
from hamicommon.placement.rules import REASONS
from opentelemetry import trace

from hami_scheduler.ports import Decision, DecisionLog, Json

logger = logging.getLogger(__name__)

# A minute of decisions at the budgeted 200 per second; beyond it records are dropped and counted.
QUEUE_SIZE = 12_000
BATCH = 64
# One transaction per batch instead of one per decision; explain may be this much behind.
GATHER_S = 0.05
RETRY_S = 1.0
RETRY_MAX_S = 5.0


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

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._queue: asyncio.Queue[Course] = asyncio.Queue(QUEUE_SIZE)
        self.dropped = 0

    def add(self, course: Course) -> None:
        """Queues the record of a pod of ours; never waits, never raises."""
        if not course.outcome or not course.uid:
            return
        course.phase_ms["total"] = round((time.perf_counter() - course.started) * 1000, 3)
        span = trace.get_current_span().get_span_context()
        course.trace_id = f"{span.trace_id:032x}" if span.is_valid else ""
        try:
            self._queue.put_nowait(course)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Writes until cancelled; what is queued then is written once more, if the ledger lets."""
        batch: list[Decision] = []
        try:
            while True:
                batch = [decision_of(await self._queue.get())]
                await asyncio.sleep(GATHER_S)
                self._take_more(batch)
                await self._write_until_done(batch)
                batch = []
        finally:
            self._take_more(batch)
            if batch:
                await self._write(batch)

    def _take_more(self, batch: list[Decision]) -> None:
        while len(batch) < BATCH and not self._queue.empty():
            batch.append(decision_of(self._queue.get_nowait()))

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


def decision_of(course: Course) -> Decision:
    """The record of a course that is over."""
    request, allocation = course.request, course.allocation
    return Decision(
        pod_uid=course.uid,
        namespace=course.namespace,
        pod_name=course.name,
        outcome=course.outcome,
        node=None if allocation is None else allocation.node,
        allocation_id=None if allocation is None else allocation.id,
        candidates=course.candidates,
        request={"containers": [asdict(c) for c in request.containers]} if request else {},
        policy=asdict(request.policy) if request else {},
        reasons=course.reasons,
        shortfalls=_tables(course.shortfalls),
        message=course.message,
        view_version=course.view_version,
        phase_ms=course.phase_ms,
        trace_id=course.trace_id,
        decided_at=course.decided_at,
    )


def _tables(shortfalls: Shortfalls | None) -> list[dict[str, object]]:
    """Per refused request: nodes, cards, and why; columns as arrays, because there are many."""
    if shortfalls is None:
        return []
    return [
        {
            "container": table.container,
            "vendor": table.vendor,
            "nodes": list(table.nodes),
            "uuids": [list(uuids) for uuids in table.uuids],
            "rules": table.codes.tolist(),
            "requested": table.requested.tolist(),
            "available": table.available.tolist(),
            "words": {str(int(rule)): word for rule, word in REASONS.items()},
        }
        for table in shortfalls.tables
    ]
