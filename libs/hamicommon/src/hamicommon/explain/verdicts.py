"""The verdict on every node and card: the engine is asked again on the cards of the record.

In: a `DecisionRecord`; out: `Findings`, which `answer.py` puts into the whole explanation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.changes.counterfactuals import counterfactuals
from hamicommon.explain.circumstances import Circumstances, Counterfactual
from hamicommon.explain.record import DecisionRecord, QuotaShort
from hamicommon.explain.wording import cards, listed, shortfall
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import feasible
from hamicommon.placement.node_scores import StrandedParts
from hamicommon.placement.rules import AGENT_SILENT, NODE_INSUFFICIENT, POD_REFUSED, Rule
from hamicommon.placement.unschedulable import GroupLimit, Shortfall

MOST_NODES = 100
"""Nodes shown card by card: the chosen one, those that fit, and those that miss the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """One card and the slice that was asked for."""

    uuid: GpuUuid
    index: int
    type: str
    fits: bool
    reason: str = ""
    """HAMi's name of the rule that refused."""
    text: str = ""
    requested: int | None = None
    available: int | None = None
    unit: str = ""
    """Of both: MiB, percent or slots; empty where the rule compares no amounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """One node and the whole pod."""

    node: NodeName
    fits: bool
    chosen: bool = False
    score: float | None = None
    """Usage of the node before the placement, 0 idle to 30 full; under the node policy
    `fragmentation` minus the milli of cards that it strands. Only of nodes that fit."""
    parts: StrandedParts | None = None
    """What that score is made of, under the node policy `fragmentation`."""
    reason: str = ""
    """HAMi's reason string."""
    text: str = ""
    cards: Sequence[CardVerdict] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the engine finds when it decides again on the record's cards."""

    nodes: Sequence[NodeVerdict] = ()
    left_out: int = 0
    changes: Sequence[Counterfactual] = ()
    notes: Sequence[str] = ()


def findings(
    record: DecisionRecord, about: Circumstances, new_view: Callable[[], ClusterView]
) -> Findings:
    """Per node and card, and what would have helped."""
    if record.request is None:
        return Findings()
    if record.view is None:
        verdicts = [
            NodeVerdict(node=node, fits=False, reason=reason, text=reason)
            for node, reason in sorted(record.reasons.items())
        ]
        no_matter = record.outcome == "error" or _pod_refused(record)
        note = "the cards that this was decided on were not recorded"
        return Findings(
            nodes=verdicts[:MOST_NODES],
            left_out=max(0, len(verdicts) - MOST_NODES),
            notes=() if no_matter else (note,),
        )
    # A refusal has a reason for every node that was offered; the view has other nodes, too.
    candidates = sorted(record.view.nodes if record.outcome == "placed" else record.reasons)
    verdicts, notes = _verdicts(record, record.request, record.view, candidates, about)
    changes: list[Counterfactual] = []
    # No change of the pod or of the cards helps where an agent has to answer again.
    offered = [node for node in candidates if record.reasons.get(node) != AGENT_SILENT]
    if record.outcome == "refused" and record.quota is None and offered:
        changes = list(counterfactuals(record.request, record.view, offered, about, new_view))
    if record.quota is not None:
        changes = [_quota_change(record.quota)]
    return Findings(
        nodes=verdicts[:MOST_NODES],
        left_out=max(0, max(len(verdicts), record.fitting) - MOST_NODES),
        changes=changes,
        notes=notes,
    )


def _pod_refused(record: DecisionRecord) -> bool:
    """Whether the pod was refused by itself, so that no card was looked at."""
    return bool(record.reasons) and all(
        reason.startswith(POD_REFUSED) for reason in record.reasons.values()
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
        if node in found.placements and record.reasons.get(node) == AGENT_SILENT:
            text = "fits, but its node-agent is silent"
            verdicts.append(NodeVerdict(node=node, fits=False, reason=AGENT_SILENT, text=text))
            continue
        if node in found.placements and record.quota is None:
            verdicts.append(
                NodeVerdict(
                    node=node,
                    fits=True,
                    chosen=node == record.node,
                    score=record.scores.get(node),
                    parts=record.parts.get(node),
                    text="fits",
                    cards=_cards_of(usages, request, ()),
                )
            )
            continue
        if node in found.placements:
            text = "fits, but the namespace's quota refuses"
            verdicts.append(
                NodeVerdict(node=node, fits=False, reason=record.reasons[node], text=text)
            )
            continue
        short = tuple(found.refusal.shortfalls.get(node, ()))
        reason = found.refusal.reasons.get(node, "")
        verdicts.append(
            NodeVerdict(
                node=node,
                fits=False,
                reason=record.reasons.get(node, reason),
                text=_why(short, usages, reason, request, found.refusal.shortfalls.limit_of(node)),
                cards=_cards_of(usages, request, short),
            )
        )
    verdicts.sort(key=_usefulness)
    notes = []
    if record.reasons and record.quota is None and _differs(record, found.refusal.reasons):
        notes.append(
            "this version of the engine judges the recorded cards otherwise than the one that "
            "decided; reasons are those of the decision"
        )
    return verdicts, notes


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
    for usage in usages:
        device = usage.device
        if device.vendor not in vendors:
            continue
        one = refused.get(device.uuid)
        if one is None:
            verdicts.append(
                CardVerdict(uuid=device.uuid, index=device.index, type=device.type, fits=True)
            )
            continue
        unit = one.rule.row.unit
        verdicts.append(
            CardVerdict(
                uuid=device.uuid,
                index=device.index,
                type=device.type,
                fits=False,
                reason=one.reason,
                text=shortfall(one, device),
                requested=one.requested if unit else None,
                available=one.available if unit else None,
                unit=unit,
            )
        )
    return verdicts


def _why(
    short: Sequence[Shortfall],
    usages: Sequence[DeviceUsage],
    reason: str,
    request: PodRequest,
    limit: GroupLimit | None,
) -> str:
    """A refused node in a sentence: how many cards fail which rule, with the best amount."""
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
            state = listed(dict.fromkeys(shortfall(one, device.get(one.uuid)) for one in of_rule))
            parts.append(f"{cards(count)}: {state}")
    fitting = len([uuid for uuid in device if uuid not in {one.uuid for one in short}])
    if limit is not None and fitting:
        parts.append(f"{cards(limit.fitting)} of the {most} wanted fit {limit.text}")
    elif fitting and most > 1:
        parts.append(f"{cards(fitting)} of the {most} wanted fit")
    return "; ".join(parts)


def _too_few(usages: Sequence[DeviceUsage], request: PodRequest) -> str:
    """A node that has fewer cards of a vendor than one container wants."""
    has = Counter(usage.device.vendor for usage in usages)
    for container in request.containers:
        for wanted in container.requests:
            if wanted.count > has[wanted.vendor]:
                found = cards(has[wanted.vendor]) if has[wanted.vendor] else "no card"
                return f"has {found} of {wanted.vendor}, {wanted.count} wanted"
    return "has fewer cards than are wanted"


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
