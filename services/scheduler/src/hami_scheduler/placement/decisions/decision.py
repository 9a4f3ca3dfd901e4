"""What one decision did: `extender/filter.py` fills it as it goes, `decision_log.py` writes it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.record import QuotaShort
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import Frozen
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.unschedulable import Shortfalls

NO_SCORES = NodeScores.of({})
"""Of a decision that is not made; nothing changes one, so all share it."""


@dataclass(slots=True, kw_only=True)
class DecisionTrace:
    """What happens while one pod is decided on; `outcome` is empty for pods that aren't ours.

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
    def pod_ref(self) -> PodRef:
        """The pod by its names."""
        return PodRef(self.namespace, self.name, self.uid)

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

    def answered(self) -> None:
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
