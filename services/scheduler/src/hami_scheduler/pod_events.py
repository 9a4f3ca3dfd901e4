"""Write events about a pod, and limit the lines about it in the log.

Events have HAMi's wording (protocol 4.7, 4.8). kube-scheduler tries a pod that can't be placed
again each second, for as long as it exists, and its author may change the error each time, so
`LogLimit` logs each text once, and few texts, per ten minutes. The decisions
(`placement/decisions.py`) record all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachetools import LRUCache
from hamicommon.domain.allocations import Allocation, Origin
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.k8s.annotations import node_label
from hamicommon.placement.node_scores import NodeScores
from hamicommon.process.rate_limit import MAX_KEYS, RateLimit

from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import PodEvent, PodEvents

WINDOW_S = 600.0
MAX_TEXTS = 5
"""Maximum number of different texts about one pod in a window."""


class LogLimit:
    """Decide for each line about a pod whether it is written, and count those that are not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._texts = RateLimit(burst=1, per_s=1 / WINDOW_S)
        self._pods = RateLimit(burst=MAX_TEXTS, per_s=MAX_TEXTS / WINDOW_S)
        self._left_out: LRUCache[PodUid, int] = LRUCache(MAX_KEYS)

    def take(self, uid: PodUid, text: str) -> int | None:
        """Count one line about the pod, and decide whether it is written.

        Returns: how many lines of the pod were left out since its last one; None: so is this one.
        """
        now = self._clock()
        is_new = self._texts.take((uid, hash(text)), at_s=now) is not None
        if not is_new or self._pods.take(uid, at_s=now) is None:
            self._left_out[uid] = self._left_out.get(uid, 0) + 1
            return None
        return self._left_out.pop(uid, 0)


FILTERING_SUCCEED = "FilteringSucceed"
FILTERING_FAILED = "FilteringFailed"
BINDING_SUCCEED = "BindingSucceed"
BINDING_FAILED = "BindingFailed"
ALLOCATE_FAILED = "AllocateFailed"
ALLOCATE_LATE = "AllocateLate"
RUNS_ON = "RunsWithoutGrant"
UNMANAGED = "UnmanagedPod"
WRONG_DEVICES = "WrongDevices"
ADOPTED = "Adopted"
CARD_CHANGED = "GrantedCardChanged"

# The event object's message is cut at 1024 bytes; a list of thousands of nodes is useless.
_MAX_NODES = 20
WHY = "why"
"""Series of the sentence that explains a refusal."""

_COUNTED = re.compile(r"^\d+/\d+ (\w+)$")


class Announcer:
    """Write events about pods."""

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
        """Emit an event about a pod; see `PodEvent.series` and `PodEvent.once`."""
        event = PodEvent(
            pod=pod, reason=reason, message=message, warning=warning, series=series, once=once
        )
        self._events.emit(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMarks:
    """Marks that pods get in addition to annotations, by the settings `events` and `label`.

    They cost the API server three writes per pod. Our own parts read neither: the pod's history
    and `explain` have the same data. HAMi's monitor selects its pods by the label, so pods
    on nodes without our agent have both; everywhere else the settings decide.
    """

    all_events: bool = False
    all_labels: bool = False

    def shows_success(self, allocation: Allocation | None) -> bool:
        """Return whether the pod gets a Normal event; `allocation` None: it asks for no card."""
        return self.all_events or (allocation is not None and not allocation.has_agent)

    def labels(self, allocation: Allocation) -> dict[str, str]:
        """Return the labels for the pod; HAMi's own pods get those of their version."""
        if allocation.origin is Origin.ADOPTED:
            return {}
        if not self.all_labels and allocation.has_agent:
            return {}
        return node_label(allocation.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Report outcomes of `/filter` and `/bind`, with one limit on lines per pod."""

    announcer: Announcer
    marks: PodMarks
    """Which pods get Normal events."""
    log_limit: LogLimit
    instruments: SchedulerInstruments


def found_message(node: str, scores: NodeScores, candidates: int) -> str:
    """Return HAMi's sentence about a placement.

    >>> found_message("a", NodeScores.of({"b": 0.0, "a": 1.5}), 3)
    'find fit node(a), 1 nodes not fit, 2 nodes fit(b:0.00,a:1.50)'
    """
    best = scores.best(_MAX_NODES)[::-1]
    listed = ",".join(f"{name}:{score:.2f}" for name, score in best)
    if len(scores) > len(best):
        listed = f"…,{listed}"
    unfit = candidates - len(scores)
    return f"find fit node({node}), {unfit} nodes not fit, {len(scores)} nodes fit({listed})"


def refusal_messages(reasons: Mapping[NodeName, str], candidates: int) -> dict[str, str]:
    """Return HAMi's sentences about a refusal: one per counted reason, then the sum.

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
        listed = ",".join(sorted(nodes)[:_MAX_NODES])
        if len(nodes) > _MAX_NODES:
            listed = f"{listed},…"
        messages[reason] = f"{len(nodes)} nodes {reason}({listed})"
    return {**messages, "sum": f"no available node, {candidates} nodes do not meet"}
