"""When each pod with claims is looked at again: a grant that waits too long, a failed write."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Set

from hamicommon.domain.ids import PodUid
from hamicommon.process.backoff import Backoff

RETRY_FIRST_S, RETRY_LAST_S = 0.5, 60.0


class Turns:
    """Moments by pod, in seconds of the clock."""

    def __init__(self, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`hold_s`: so long a grant waits for its pod, less than the lease of its row."""
        self._hold_s = hold_s
        self._clock = clock
        self._held: dict[PodUid, float] = {}
        """Pods whose claims are written, and until when their grants wait for them."""
        self._again: dict[PodUid, float] = {}
        self._backoffs: dict[PodUid, Backoff] = {}

    @property
    def known(self) -> Set[PodUid]:
        """Pods with a moment at which they are looked at again."""
        return self._held.keys() | self._again.keys()

    def due(self) -> set[PodUid]:
        """Those whose moment has come; a held one is due until it is let go."""
        now = self._clock()
        again = {uid for uid, at in self._again.items() if at <= now}
        for uid in again:
            del self._again[uid]
        return again | {uid for uid, at in self._held.items() if at <= now}

    def hold(self, uid: PodUid) -> None:
        """The pod's claims are written: its grant waits for it from now, or from before."""
        self._held.setdefault(uid, self._clock() + self._hold_s)

    def holds(self, uid: PodUid) -> bool:
        """Whether the pod's grant waits for it."""
        return uid in self._held

    def held_too_long(self, uid: PodUid) -> bool:
        """Whether the pod has not come in time."""
        return uid in self._held and self._held[uid] <= self._clock()

    def let_go(self, uid: PodUid) -> None:
        """The pod's grant waits no more."""
        self._held.pop(uid, None)

    def again_at(self, uid: PodUid, at: float) -> None:
        """The pod is looked at once more at that moment."""
        self._again[uid] = at

    def succeeded(self, uid: PodUid) -> None:
        """The pod's next failure is its first."""
        self._backoffs.pop(uid, None)

    def failed(self, uid: PodUid) -> float:
        """The pod's turn failed; seconds until its next one, longer after each failure."""
        backoff = self._backoffs.setdefault(uid, Backoff(RETRY_FIRST_S, RETRY_LAST_S))
        wait_s = backoff.failed()
        self.again_at(uid, self._clock() + wait_s)
        return wait_s

    def keep(self, uids: Collection[PodUid]) -> None:
        """Forgets all pods but these."""
        self._held = {uid: at for uid, at in self._held.items() if uid in uids}
        self._again = {uid: at for uid, at in self._again.items() if uid in uids}
        self._backoffs = {uid: each for uid, each in self._backoffs.items() if uid in uids}
