"""Cache of `mutate`'s reviews, for a process that judges many equal pods.

The replicas of a workload are alike in all that `pod_review.relevant` leaves of them, and they come
in bursts. The cache's key is a digest of exactly this part, and what the namespace may do, so an
answer can depend on nothing else. Quotas, cards and the trace are asked each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b

import orjson
from cachetools import LRUCache

from hamicommon.admission.mutation import Room, judge, judge_at_once, room_for, standing_of
from hamicommon.admission.pod_review import Look, look_at, relevant
from hamicommon.admission.tampering.findings import NamespacePermits
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import (
    ANY,
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
    Knowledge,
)
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.types import Json

MAX_LOOKS = 1024
"""Maximum number of different pod specs whose review is cached; one takes a few kB."""
_DIGEST_BYTES = 20


AskForRoom = Callable[[PodRequest, Knowledge], Awaitable[Room]]
"""Function that runs `room_for`, in this process or in another."""


async def ask_inline(request: PodRequest, known: Knowledge) -> Room:
    """Run `room_for` on the event loop itself."""
    return room_for(request, known)


class AdmissionCache:
    """Judge pods by the installation's rules, as `mutate` does, caching the review of equal pods.

    Only one event loop may use it.
    """

    def __init__(self, rules: AdmissionRules, ask_for_room: AskForRoom = ask_inline) -> None:
        self._rules = rules
        self._ask_for_room = ask_for_room
        self._guard = Guard.of(rules.vendors, rules.tampering)
        self._looks: LRUCache[tuple[bytes, NamespacePermits], Look] = LRUCache(MAX_LOOKS)

    async def __call__(self, pod: Json, about: AdmissionCircumstances = ANY) -> AdmissionResult:
        """Return the same answer as `mutate`."""
        at_once = judge_at_once(pod, self._guard, about)
        if at_once is not None:
            return at_once
        standing = standing_of(pod, self._rules, about)
        look = self._look(relevant(pod, self._guard), standing)
        room = None
        if look.request is not None and self._rules.never_fits != "off":
            room = await self._ask_for_room(look.request, about.knowledge)
        return judge(look, self._rules, about, room)

    def _look(self, seen: Json, standing: NamespacePermits) -> Look:
        try:
            key = blake2b(orjson.dumps(seen), digest_size=_DIGEST_BYTES).digest(), standing
        except TypeError:
            # A number or a text that orjson can't write, which is rare.
            return look_at(seen, self._rules, standing)
        known = self._looks.get(key)
        if known is None:
            known = self._looks[key] = look_at(seen, self._rules, standing)
        return known
