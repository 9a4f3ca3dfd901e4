"""A course that is over as a `DecisionRow`, with one plain sentence on what is short."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from hamicommon.domain.ids import NodeName
from hamicommon.explain.moment import MomentEncoder
from hamicommon.explain.record import detail_bytes, request_json
from hamicommon.explain.sentence import CardStock, placed_sentence, quota_sentence, refusal_sentence

from hami_scheduler.placement.decision import DecisionTrace
from hami_scheduler.ports import DecisionRow

_COUNTED = re.compile(r"^\d+/\d+ ")


def decision_of(course: DecisionTrace, encoder: MomentEncoder, stock: CardStock) -> DecisionRow:
    """The record of a course that is over."""
    request, allocation = course.request, course.allocation
    moment = None if course.frozen is None else encoder.encode(course.frozen)
    return DecisionRow(
        pod_uid=course.uid,
        namespace=course.namespace,
        pod_name=course.name,
        outcome=course.outcome,
        node=None if allocation is None else allocation.node,
        allocation_id=None if allocation is None else allocation.id,
        kept=course.kept,
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


def _summary(course: DecisionTrace, stock: CardStock) -> str:
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


def _silent_nodes(course: DecisionTrace) -> str:
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
