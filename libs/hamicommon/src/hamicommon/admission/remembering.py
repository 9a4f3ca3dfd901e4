"""`mutate` for a process that judges many pods: what a pod comes to by itself is remembered.

The replicas of a workload are alike in all that `looking.relevant` leaves of them, and they come in
bursts. What is kept is found by a digest of exactly this part and of nothing else, so an answer can
depend on nothing that the digest does not hold. Quotas, cards and the trace are asked each time.
"""

from __future__ import annotations

from hashlib import blake2b

import orjson

from hamicommon.admission.looking import Look, look_at, relevant
from hamicommon.admission.mutation import judge
from hamicommon.admission.verdicts import ANY, AdmissionRules, Circumstances, Verdict
from hamicommon.vendors.base import JsonObject

MOST_LOOKS = 1024
"""Kinds of pods that are remembered; one takes some kB."""
_DIGEST_BYTES = 20


class Remembering:
    """Judges pods by one installation's rules. One event loop owns it."""

    def __init__(self, rules: AdmissionRules) -> None:
        self._rules = rules
        self._looks: dict[bytes, Look] = {}

    def __call__(self, pod: JsonObject, about: Circumstances = ANY) -> Verdict:
        """What `mutate` answers."""
        return judge(self._look(relevant(pod)), self._rules, about)

    def _look(self, seen: JsonObject) -> Look:
        try:
            key = blake2b(orjson.dumps(seen), digest_size=_DIGEST_BYTES).digest()
        except TypeError:  # a number or a text that orjson can't write: rare, and judged each time
            return look_at(seen, self._rules)
        known = self._looks.get(key)
        if known is None:
            if len(self._looks) >= MOST_LOOKS:
                self._looks.clear()
            known = self._looks[key] = look_at(seen, self._rules)
        return known
