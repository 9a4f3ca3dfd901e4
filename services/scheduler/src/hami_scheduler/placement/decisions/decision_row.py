"""A trace that is over as a `DecisionRow`, with one plain sentence on what is short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from hamicommon.domain.ids import NodeName
from hamicommon.explain.moment import MomentEncoder
from hamicommon.explain.record import detail_bytes, request_json
from hamicommon.explain.sentence import CardStock, placed_sentence, quota_sentence, refusal_sentence

from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.ports.ledger import DecisionRow

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
            return f"{_silent_nodes(trace)}, and there is no other"
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
