"""How many log lines a pod may cause: each text once, and few texts, per ten minutes.

kube-scheduler tries a pod that can't be placed again each second, for as long as it exists, and its
author may change what is wrong with it each time. What is left out is counted, and the decisions
(`decision_log.py`) have all of it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from hamicommon.domain.ids import PodUid

WINDOW_S = 600.0
MOST_LINES = 5
"""Different texts of one pod in a window."""
MOST_PODS = 10_000
"""Pods that are remembered; the one that was looked at least recently goes first."""


@dataclass(slots=True)
class _Spent:
    began: float
    texts: set[int] = field(default_factory=set)
    left_out: int = 0


class LineBudget:
    """Decides of each line whether it is written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: OrderedDict[PodUid, _Spent] = OrderedDict()

    def spend(self, uid: PodUid, text: str) -> int | None:
        """How many lines of the pod were left out since its last window; None: so is this one."""
        now = self._clock()
        spent = self._pods.pop(uid, None)
        left_out = 0
        if spent is None or now - spent.began >= WINDOW_S:
            left_out = 0 if spent is None else spent.left_out
            spent = _Spent(now)
        self._pods[uid] = spent
        if len(self._pods) > MOST_PODS:
            self._pods.popitem(last=False)
        seen = hash(text)
        if seen in spent.texts or len(spent.texts) >= MOST_LINES:
            spent.left_out += 1
            return None
        spent.texts.add(seen)
        return left_out
