"""The whole explanation of a pod: the answer of `GET /v1/pods/{uid}/explain`.

In: the latest `DecisionRecord`, the `Circumstances`, and what the ledger knows besides; out:
`Explanation`,
plain values. Its fields are a promise to people's tools (docs/explain.md): fields may be added, and
`schema_version` grows when one changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.explain.circumstances import Circumstances, Counterfactual
from hamicommon.explain.record import DecisionRecord, QuotaShort
from hamicommon.explain.verdicts import NodeVerdict, findings
from hamicommon.explain.wording import asked_by
from hamicommon.placement.cluster.view import ClusterView

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUser:
    """Who uses the quota that was short."""

    pod: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTrouble:
    """A card that the pod holds and that is not as it was granted."""

    container: str
    uuid: str
    condition: str
    """`lost`, `replaced`, `mode-changed`, `unhealthy`, `node-silent` or `cordoned`."""
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a pod is where it is, or waits."""

    schema_version: int = SCHEMA_VERSION
    pod_uid: str
    namespace: str
    pod_name: str
    outcome: str
    """`placed`, `refused`, `error`, or `undecided`: it never came to this scheduler."""
    summary: str
    """One plain sentence: what is short and what would help, or why it is where it is."""
    message: str = ""
    """The decision as HAMi would put it."""
    chosen: NodeName | None = None
    asked: Sequence[str] = ()
    policy: str = ""
    nodes: Sequence[NodeVerdict] = ()
    nodes_left_out: int = 0
    nodes_without_cards: int = 0
    counterfactuals: Sequence[Counterfactual] = ()
    quota: QuotaShort | None = None
    quota_users: Sequence[QuotaUser] = ()
    notes: Sequence[str] = ()
    """What is odd about the pod's request, and what of the record is missing."""
    decided_at: datetime | None = None
    cards_as_of: datetime | None = None
    """When the repetition was decided whose cards are shown here."""
    last_at: datetime | None = None
    repeat_count: int = 0
    view_version: int | None = None
    trace_id: str = ""
    candidates: int | None = None
    retry: str = ""
    """When and by whom a waiting pod is tried again."""
    wait_end: str = ""
    """How a refused pod's wait ended: `deleted`, `gone` (deleted while no scheduler watched),
    `bound` or `finished`; empty while it waits."""
    wait_ended_at: datetime | None = None
    """When it ended; of `gone` an estimate."""
    cards: Sequence[CardTrouble] = ()
    """Cards of the pod that are not as they were granted."""
    attempts: Sequence[Mapping[str, Any]] = ()
    """The pod's allocations, newest first."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """Decisions before this one, in short: `at`, `outcome`, `summary`, `repeat_count`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the ledger and the cluster know of a pod besides its latest decision."""

    about: Circumstances
    quota_users: Sequence[QuotaUser] = ()
    cards: Sequence[CardTrouble] = ()
    attempts: Sequence[Mapping[str, Any]] = ()
    earlier: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    retry: str = ""
    wait_end: str = ""
    wait_ended_at: datetime | None = None


def explain(
    uid: PodUid,
    namespace: str,
    pod_name: str,
    record: DecisionRecord,
    known: Known,
    new_view: Callable[[], ClusterView],
) -> Explanation:
    """Explains the latest decision about a pod. Takes some milliseconds per hundred nodes."""
    found = findings(record, known.about, new_view)
    request = record.request
    return Explanation(
        pod_uid=uid,
        namespace=namespace,
        pod_name=pod_name,
        outcome=record.outcome,
        summary=record.summary or record.message,
        message=record.message,
        chosen=record.node,
        asked=[] if request is None else asked_by(request),
        policy=""
        if request is None
        else f"nodes {request.policy.node}, cards {','.join(request.policy.gpu)}",
        nodes=found.nodes,
        nodes_left_out=found.left_out,
        nodes_without_cards=record.unregistered_count,
        counterfactuals=found.changes,
        quota=record.quota,
        quota_users=known.quota_users,
        notes=[*known.notes, *found.notes],
        decided_at=record.decided_at,
        cards_as_of=record.detail_at if record.view is not None else None,
        last_at=record.last_at,
        repeat_count=record.repeat_count,
        view_version=record.view_version,
        trace_id=record.trace_id,
        candidates=record.candidates,
        retry=known.retry,
        wait_end=known.wait_end,
        wait_ended_at=known.wait_ended_at,
        cards=known.cards,
        attempts=known.attempts,
        earlier=known.earlier,
    )
