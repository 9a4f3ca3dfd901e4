"""One decision: its trace, which `extender/filter.py` fills as it goes, and the row made of it."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.record import MomentEncoder, QuotaShort, detail_bytes, request_json
from hamicommon.explain.sentences import (
    CardStock,
    placed_sentence,
    quota_sentence,
    refusal_sentence,
)
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import Frozen
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.unschedulable import Shortfalls

from hami_scheduler.ports.ledger import DecisionRow

NO_SCORES = NodeScores.of({})
"""Scores of a decision that is not made; shared, because nothing changes them."""


@dataclass(slots=True, kw_only=True)
class DecisionTrace:
    """Record of one decision while it is made; `outcome` is empty for pods that aren't ours.

    `phase_ms` has the parts of the time from the call to the answer's body: parse, place,
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
    kept: bool = False
    """The allocation is one that the pod held before."""
    message: str = ""
    reasons: Mapping[NodeName, str] = field(default_factory=dict)
    shortfalls: Shortfalls | None = None
    silent: tuple[NodeName, ...] = ()
    """Nodes that were not offered, because their agents are silent."""
    scores: NodeScores = field(default_factory=lambda: NO_SCORES)
    quota: QuotaShort | None = None
    frozen: Frozen | None = None
    view_version: int = 0
    phase_ms: dict[str, float] = field(default_factory=dict)
    trace_id: str = ""
    is_recorded: bool = True
    """False for an answer that was recorded when it was given first."""
    _lap_began: float = field(init=False)

    def __post_init__(self) -> None:
        self._lap_began = self.started

    @property
    def uid(self) -> PodUid:
        """The pod's uid; empty if the caller sent none."""
        return PodUid(str(self._metadata.get("uid") or ""))

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return str(self._metadata.get("namespace") or "default")

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self._metadata.get("name") or "")

    @property
    def pod_ref(self) -> PodRef:
        """The pod by its names."""
        return PodRef(self.namespace, self.name, self.uid)

    @property
    def _metadata(self) -> Json:
        metadata = self.pod.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to the named phase."""
        self._lap_began = time.perf_counter()
        try:
            yield
        finally:
            self.lap(name)

    def lap(self, name: str) -> None:
        """Add the time since the last phase ended (or the call came) to the named phase."""
        now = time.perf_counter()
        spent_ms = (now - self._lap_began) * 1000
        self._lap_began = now
        self.phase_ms[name] = round(self.phase_ms.get(name, 0.0) + spent_ms, 3)

    def mark_answered(self) -> None:
        """The answer's body is made."""
        self.lap("answer")
        self.phase_ms["total"] = round((self._lap_began - self.started) * 1000, 3)

    def refuse(self, reasons: Mapping[NodeName, str], shortfalls: Shortfalls | None) -> None:
        """No node fits."""
        self.outcome, self.reasons, self.shortfalls = "refused", reasons, shortfalls
        self.scores = NO_SCORES
        self.message = f"no available node, {self.candidates} nodes do not meet"

    def attributes(self) -> dict[str, str | int | list[str]]:
        """For the span of the decision."""
        found: dict[str, str | int | list[str]] = {
            **telemetry.pod_attributes(
                uid=self.uid, namespace=clip(self.namespace), name=clip(self.name)
            ),
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


_COUNTED = re.compile(r"^\d+/\d+ ")


def decision_of(trace: DecisionTrace, encoder: MomentEncoder, stock: CardStock) -> DecisionRow:
    """The record of a trace that is over."""
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
    """Reason -> number of nodes that gave it.

    >>> reason_counts({"a": "1/2 CardInsufficientMemory, 1/2 CardNotHealth", "b": "node gone"})
    {'CardInsufficientMemory': 1, 'CardNotHealth': 1, 'node gone': 1}
    """
    counts: Counter[str] = Counter()
    # Thousands of nodes give few distinct reasons.
    for reason, nodes in Counter(reasons.values()).items():
        for part in reason.split(", "):
            counts[_COUNTED.sub("", part)] += nodes
    return dict(counts)
