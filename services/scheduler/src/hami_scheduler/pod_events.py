"""The events that users see on their pods, in HAMi's wording (protocol 4.7, 4.8)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.placement.node_scores import NodeScores

from hami_scheduler.ports.cluster import PodEvent, PodEvents

FILTERING_SUCCEED = "FilteringSucceed"
FILTERING_FAILED = "FilteringFailed"
BINDING_SUCCEED = "BindingSucceed"
BINDING_FAILED = "BindingFailed"
ALLOCATE_FAILED = "AllocateFailed"
ALLOCATE_LATE = "AllocateLate"
RUNS_ON = "RunsWithoutGrant"
UNMANAGED = "UnmanagedPod"
ADOPTED = "Adopted"
CARD_CHANGED = "GrantedCardChanged"

# The event object's message is cut at 1024 bytes; a list of thousands of nodes helps nobody.
_MOST_NODES = 20
WHY = "why"
"""Series of the plain sentence."""

_COUNTED = re.compile(r"^\d+/\d+ (\w+)$")


class Announcer:
    """Shows on a pod what became of it."""

    def __init__(self, events: PodEvents) -> None:
        self._events = events

    def announce(
        self,
        pod: PodRef,
        reason: str,
        message: str,
        *,
        warning: bool = True,
        series: str = "",
        once: bool = False,
    ) -> None:
        """One event; see `PodEvent.series` and `PodEvent.once`."""
        self._events.emit(
            PodEvent(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                reason=reason,
                message=message,
                warning=warning,
                at=datetime.now(UTC),
                series=series,
                once=once,
            )
        )


def found_message(node: str, scores: NodeScores, candidates: int) -> str:
    """HAMi's sentence about a placement.

    >>> found_message("a", NodeScores.of({"b": 0.0, "a": 1.5}), 3)
    'find fit node(a), 1 nodes not fit, 2 nodes fit(b:0.00,a:1.50)'
    """
    best = scores.best(_MOST_NODES)[::-1]
    listed = ",".join(f"{name}:{score:.2f}" for name, score in best)
    if len(scores) > len(best):
        listed = f"…,{listed}"
    unfit = candidates - len(scores)
    return f"find fit node({node}), {unfit} nodes not fit, {len(scores)} nodes fit({listed})"


def refusal_messages(reasons: Mapping[NodeName, str], candidates: int) -> dict[str, str]:
    """HAMi's sentences about a refusal by series: one per counted reason, then the sum.

    >>> refusal_messages({"b": "2/2 CardNotHealth", "a": "1/2 CardNotHealth"}, 3)
    {'CardNotHealth': '2 nodes CardNotHealth(a,b)', 'sum': 'no available node, 3 nodes do not meet'}
    """
    same: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        same.setdefault(reason, []).append(node)
    nodes_of: dict[str, list[str]] = {}
    for reason, nodes in same.items():
        for part in reason.split(", "):
            if match := _COUNTED.match(part):
                nodes_of.setdefault(match[1], []).extend(nodes)
    messages = {}
    for reason, nodes in sorted(nodes_of.items()):
        listed = ",".join(sorted(nodes)[:_MOST_NODES])
        if len(nodes) > _MOST_NODES:
            listed = f"{listed},…"
        messages[reason] = f"{len(nodes)} nodes {reason}({listed})"
    return {**messages, "sum": f"no available node, {candidates} nodes do not meet"}
