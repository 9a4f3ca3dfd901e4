"""`mutate` for a process that judges many pods: what a pod comes to by itself is cached.

The replicas of a workload are alike in all that `pod_review.relevant` leaves of them, and they come
in bursts. The cache's key is a digest of exactly this part and of nothing else, so an answer can
depend on nothing that the digest does not hold. Quotas, cards and the trace are asked each time.
"""

from __future__ import annotations

from hashlib import blake2b

import orjson

from hamicommon.admission.mutation import judge
from hamicommon.admission.pod_review import Look, look_at, relevant
from hamicommon.admission.verdicts import (
    ANY,
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
)
from hamicommon.k8s.types import Json

MOST_LOOKS = 1024
"""Kinds of pods that are cached; one takes some kB."""
_DIGEST_BYTES = 20


class AdmissionCache:
    """Judges pods by one installation's rules. One event loop owns it."""

    def __init__(self, rules: AdmissionRules) -> None:
        self._rules = rules
        self._looks: dict[bytes, Look] = {}

    def __call__(self, pod: Json, about: AdmissionCircumstances = ANY) -> AdmissionResult:
        """What `mutate` answers."""
        return judge(self._look(relevant(pod)), self._rules, about)

    def _look(self, seen: Json) -> Look:
        try:
            key = blake2b(orjson.dumps(seen), digest_size=_DIGEST_BYTES).digest()
        except TypeError:
            # A number or a text that orjson can't write, which is rare.
            return look_at(seen, self._rules)
        known = self._looks.get(key)
        if known is None:
            known = look_at(seen, self._rules)
            if len(self._looks) >= MOST_LOOKS:
                self._looks.clear()
            self._looks[key] = known
        return known
