"""Limit on the log lines about one pod: each text once, and few texts, per ten minutes.

kube-scheduler tries a pod that can't be placed again each second, for as long as it exists, and its
author may change what is wrong with it each time. The decisions (`placement/decisions.py`) have all
of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetools import LRUCache
from hamicommon.domain.ids import PodUid
from hamicommon.process.rate_limit import MAX_KEYS, RateLimit

WINDOW_S = 600.0
MAX_TEXTS = 5
"""Different texts of one pod in a window."""


class LogLimit:
    """Decide for each line about a pod whether it is written, and count those that are not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._texts = RateLimit(burst=1, per_s=1 / WINDOW_S)
        self._pods = RateLimit(burst=MAX_TEXTS, per_s=MAX_TEXTS / WINDOW_S)
        self._left_out: LRUCache[PodUid, int] = LRUCache(MAX_KEYS)

    def take(self, uid: PodUid, text: str) -> int | None:
        """Count one line about the pod.

        Returns: how many lines of the pod were left out since its last one; None: so is this one.
        """
        now = self._clock()
        is_new = self._texts.take((uid, hash(text)), at_s=now) is not None
        if not is_new or self._pods.take(uid, at_s=now) is None:
            self._left_out[uid] = self._left_out.get(uid, 0) + 1
            return None
        return self._left_out.pop(uid, 0)
