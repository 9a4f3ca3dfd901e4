"""The complete explanation of a pod, as `GET /v1/pods/{uid}/explain` answers it.

Input: the latest `DecisionRecord` with its `Circumstances`. Output: `Explanation`, plain values,
with the verdict on every node and card, which the engine computes again from the cards of the
record. Its fields are a stable interface for tools (docs/explain.md): fields may be added, and
`schema_version` grows when one changes its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.counterfactuals import Circumstances, Counterfactual, counterfactuals
from hamicommon.explain.record import DecisionRecord, QuotaShort
from hamicommon.explain.sentences import asked_by, cards, list_values, shortfall
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import feasible
from hamicommon.placement.node_scores import StrandedParts
from hamicommon.placement.rules import (
    AGENT_SILENT,
    NODE_INSUFFICIENT,
    POD_REFUSED,
    ROOM_HELD,
    Rule,
)
from hamicommon.placement.unschedulable import GroupLimit, Shortfall

CORDONED = "is cordoned (SchedulingDisabled)"
"""Reason of a cordoned node, with kubectl's term for it."""
MAX_NODES = 100
"""Maximum number of nodes shown with their cards: the chosen one, fitting ones, nearest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """Whether one card can take the requested slice, and the reason if it can't."""

    uuid: GpuUuid
    index: int
    type: str
    fits: bool
    reason: str = ""
    """HAMi's name of the rule that refused the card."""
    text: str = ""
    requested: int | None = None
    available: int | None = None
    unit: str = ""
    """Unit of both amounts: MiB, percent or slots; empty if the rule compares no amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """Whether one node can take the whole pod, and the reason if it can't."""

    node: NodeName
    fits: bool
    chosen: bool = False
    score: float | None = None
    """Score of a node that fits: its usage before the placement, from 0 (idle) to 30 (full).

    Under the node policy `fragmentation`: minus the thousandths of cards that the pod strands.
    """
    parts: StrandedParts | None = None
    """Parts of that score under the node policy `fragmentation`."""
    reason: str = ""
    """HAMi's reason string."""
    text: str = ""
    cards: Sequence[CardVerdict] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of deciding again on the stored cards."""

    nodes: Sequence[NodeVerdict] = ()
    left_out: int = 0
    changes: Sequence[Counterfactual] = ()
    notes: Sequence[str] = ()


def findings(
    record: DecisionRecord, about: Circumstances, new_view: Callable[[], ClusterView]
) -> Findings:
    """Decide again on the stored cards: results per node and card, and changes that would help."""
    if record.request is None or _all_reasons(record, ROOM_HELD):
        # Where the pod goes is decided: no other node was looked at.
        return Findings()
    if record.view is None:
        verdicts = [
            NodeVerdict(node=node, fits=False, reason=reason, text=reason)
            for node, reason in sorted(record.reasons.items())
        ]
        no_matter = record.view_version == 0 or _all_reasons(record, POD_REFUSED)
        note = "the cards that this was decided on were not recorded"
        return Findings(
            nodes=verdicts[:MAX_NODES],
            left_out=max(0, len(verdicts) - MAX_NODES),
            notes=() if no_matter else (note,),
        )
    # A refusal has a reason for every node that was offered; the view has other nodes, too.
    candidates = sorted(record.view.nodes if record.outcome == "placed" else record.reasons)
    # kube-scheduler does not offer them, so the decision does not have them.
    candidates += sorted(about.cordoned.intersection(record.view.nodes).difference(candidates))
    verdicts, notes = _verdicts(record, record.request, record.view, candidates, about)
    changes: list[Counterfactual] = []
    # No change of the pod or of the cards helps where an agent has to answer again.
    offered = [
        node
        for node in candidates
        if record.reasons.get(node) != AGENT_SILENT and node not in about.cordoned
    ]
    if record.outcome == "refused" and record.quota is None and offered:
        changes = list(counterfactuals(record.request, record.view, offered, about, new_view))
    if record.quota is not None:
        changes = [_quota_change(record.quota)]
    return Findings(
        nodes=verdicts[:MAX_NODES],
        left_out=max(0, max(len(verdicts), record.fitting) - MAX_NODES),
        changes=changes,
        notes=notes,
    )


def _all_reasons(record: DecisionRecord, beginning: str) -> bool:
    """Return whether all nodes refused with this beginning of a reason, which concerns no card."""
    return bool(record.reasons) and all(
        reason.startswith(beginning) for reason in record.reasons.values()
    )


def _verdicts(
    record: DecisionRecord,
    request: PodRequest,
    view: ClusterView,
    candidates: Sequence[NodeName],
    about: Circumstances,
) -> tuple[list[NodeVerdict], list[str]]:
    found = feasible(request, view, candidates)
    verdicts = []
    for node in candidates:
        usages = [usage for usage, _ in view.cards(node)]
        reason = record.reasons.get(node, found.refusal.reasons.get(node, ""))
        if node not in found.placements:
            short = tuple(found.refusal.shortfalls.get(node, ()))
            limit = found.refusal.shortfalls.limit_of(node)
            why = found.refusal.reasons.get(node, "")
            text = _why(short, usages, why, request, limit)
            verdict = NodeVerdict(
                node=node,
                fits=False,
                reason=reason,
                text=f"{CORDONED}; {text}" if node in about.cordoned else text,
                cards=_cards_of(usages, request, short),
            )
        elif reason == AGENT_SILENT:
            text = "fits, but its node-agent is silent"
            verdict = NodeVerdict(node=node, fits=False, reason=reason, text=text)
        elif node in about.cordoned:
            verdict = NodeVerdict(node=node, fits=False, text=f"fits, but {cordoned_text(node)}")
        elif record.quota is not None:
            text = "fits, but the namespace's quota refuses"
            verdict = NodeVerdict(node=node, fits=False, reason=reason, text=text)
        else:
            verdict = NodeVerdict(
                node=node,
                fits=True,
                chosen=node == record.node,
                score=record.scores.get(node),
                parts=record.parts.get(node),
                text="fits",
                cards=_cards_of(usages, request, ()),
            )
        verdicts.append(verdict)
    verdicts.sort(key=_usefulness)
    notes = []
    if record.reasons and record.quota is None and _differs(record, found.refusal.reasons):
        notes.append(
            "this version of the engine judges the recorded cards otherwise than the one that "
            "decided; reasons are those of the decision"
        )
    return verdicts, notes


def cordoned_text(node: NodeName) -> str:
    """Return the reason of a cordoned node, which kube-scheduler offers to no pod."""
    return f"{CORDONED}: `kubectl uncordon {node}` opens it"


def _differs(record: DecisionRecord, reasons: Mapping[NodeName, str]) -> bool:
    return any(
        reasons.get(node) != reason
        for node, reason in record.reasons.items()
        if reason != AGENT_SILENT
    )


def _usefulness(verdict: NodeVerdict) -> tuple[bool, bool, float, int, NodeName]:
    missing = sum(max(0, (card.requested or 0) - (card.available or 0)) for card in verdict.cards)
    return (not verdict.chosen, not verdict.fits, -(verdict.score or 0.0), missing, verdict.node)


def _cards_of(
    usages: Sequence[DeviceUsage], request: PodRequest, short: Sequence[Shortfall]
) -> list[CardVerdict]:
    refused = {one.uuid: one for one in short}
    vendors = {wanted.vendor for c in request.containers for wanted in c.requests}
    verdicts = []
    for device in (usage.device for usage in usages if usage.device.vendor in vendors):
        verdict = CardVerdict(uuid=device.uuid, index=device.index, type=device.type, fits=True)
        if (one := refused.get(device.uuid)) is not None:
            unit = one.rule.row.unit
            verdict = replace(
                verdict,
                fits=False,
                reason=one.reason,
                text=shortfall(one, device),
                requested=one.requested if unit else None,
                available=one.available if unit else None,
                unit=unit,
            )
        verdicts.append(verdict)
    return verdicts


def _why(
    short: Sequence[Shortfall],
    usages: Sequence[DeviceUsage],
    reason: str,
    request: PodRequest,
    limit: GroupLimit | None,
) -> str:
    """Explain a refused node in one sentence: number of cards per rule, and the best amount."""
    device = {usage.device.uuid: usage.device for usage in usages}
    most = max((w.count for c in request.containers for w in c.requests), default=0)
    if reason == NODE_INSUFFICIENT:
        return _too_few(usages, request)
    if not short and limit is None:
        return reason
    parts = []
    counts = Counter(one.rule for one in short)
    for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        of_rule = [one for one in short if one.rule == rule]
        best = max(of_rule, key=lambda one: (one.available - one.requested, one.uuid))
        if rule in (Rule.MEMORY, Rule.CORES):
            parts.append(f"{cards(count)}: at most {shortfall(best, device.get(best.uuid))}")
        else:
            state = list_values(
                dict.fromkeys(shortfall(one, device.get(one.uuid)) for one in of_rule)
            )
            parts.append(f"{cards(count)}: {state}")
    fitting = len([uuid for uuid in device if uuid not in {one.uuid for one in short}])
    if limit is not None and fitting:
        parts.append(f"{cards(limit.fitting)} of the {most} wanted fit {limit.text}")
    elif fitting and most > 1:
        parts.append(f"{cards(fitting)} of the {most} wanted fit")
    return "; ".join(parts)


def _too_few(usages: Sequence[DeviceUsage], request: PodRequest) -> str:
    """Explain a node that has fewer cards of a vendor than one container asks for."""
    has = Counter(usage.device.vendor for usage in usages)
    for container in request.containers:
        for wanted in container.requests:
            if wanted.count > has[wanted.vendor]:
                found = cards(has[wanted.vendor]) if has[wanted.vendor] else "no card"
                return f"has {found} of {wanted.vendor}, {wanted.count} wanted"
    return "has fewer cards than requested"


def _quota_change(quota: QuotaShort) -> Counterfactual:
    limit, used, wanted = map(quota.in_units, (quota.limit, quota.used, quota.wanted))
    return Counterfactual(
        kind="quota",
        text=(
            f"quota short by {quota.with_unit(quota.short)}: limits.{quota.resource} of namespace "
            f"{quota.namespace} is {limit}, {used} used, {wanted} wanted"
        ),
        limit=quota.left // (quota.unit_mib or 1),
        unit=quota.resource,
    )


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUser:
    """Pod that uses the exceeded quota."""

    pod: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTrouble:
    """Card of the pod whose condition has changed since it was granted."""

    container: str
    uuid: str
    condition: str
    """`lost`, `replaced`, `mode-changed`, `unhealthy`, `node-silent` or `cordoned`."""
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a pod's place, or of its waiting."""

    schema_version: int = SCHEMA_VERSION
    pod_uid: str
    namespace: str
    pod_name: str
    outcome: str
    """Outcome: `placed`, `refused`, `error` or `undecided`: this scheduler never got the pod."""
    summary: str
    """Summary in one sentence: the shortage and what would help, or why the pod is where it is."""
    message: str = ""
    """Decision in HAMi's terms."""
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
    """Remarks about the pod's request, and about missing parts of the record."""
    decided_at: datetime | None = None
    cards_as_of: datetime | None = None
    """Time of the decision whose cards are shown."""
    last_at: datetime | None = None
    repeat_count: int = 0
    view_version: int | None = None
    trace_id: str = ""
    candidates: int | None = None
    retry: str = ""
    """Sentence about when and by whom a waiting pod is retried."""
    wait_end: str = ""
    """How a refused pod's wait ended: `deleted`, `gone` (deleted while no scheduler watched),
    `bound` or `finished`; empty while it waits."""
    wait_ended_at: datetime | None = None
    """Time when the wait ended; an estimate if `wait_end` is `gone`."""
    cards: Sequence[CardTrouble] = ()
    """Cards of the pod whose condition has changed since they were granted."""
    attempts: Sequence[Mapping[str, Any]] = ()
    """The pod's allocations, newest first."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """Earlier decisions in short: `at`, `outcome`, `summary`, `repeat_count`."""


def explain(
    uid: PodUid,
    namespace: str,
    pod_name: str,
    record: DecisionRecord,
    about: Circumstances,
    new_view: Callable[[], ClusterView],
) -> Explanation:
    """Explain the newest decision about a pod; takes some milliseconds per hundred nodes."""
    found = findings(record, about, new_view)
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
        notes=found.notes,
        decided_at=record.decided_at,
        cards_as_of=record.detail_at if record.view is not None else None,
        last_at=record.last_at,
        repeat_count=record.repeat_count,
        view_version=record.view_version,
        trace_id=record.trace_id,
        candidates=record.candidates,
    )
