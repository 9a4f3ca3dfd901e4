"""`mutate` for a process that judges many pods: what a pod comes to by itself is remembered.

The replicas of a workload are alike in all that `looking.relevant` leaves of them, and they come in
bursts. What is kept is found by a digest of exactly this part and of nothing else, so an answer can
depend on nothing that the digest does not hold. Quotas, cards and the trace are asked each time.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

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
"""Kinds of pods that are remembered; one takes some kB."""
_DIGEST_BYTES = 20


class Relevant(Protocol):
    """What `looking.relevant` leaves of one pod."""

    def key(self) -> bytes | None:
        """Pods with the same key are alike in all of it; None: this one is like no other."""

    def read(self) -> Json:
        """It."""


class OfObject:
    """Of a pod that is decoded."""

    __slots__ = ("_seen",)

    def __init__(self, pod: Json) -> None:
        self._seen = relevant(pod)

    def key(self) -> bytes | None:
        """Its digest; None: it holds a number or a text that orjson can't write, which is rare."""
        try:
            return digest(orjson.dumps(self._seen))
        except TypeError:
            return None

    def read(self) -> Json:
        """What was decoded."""
        return self._seen


def digest(relevant_bytes: bytes) -> bytes:
    """A key of `Relevant`."""
    return blake2b(relevant_bytes, digest_size=_DIGEST_BYTES).digest()


class AdmissionCache:
    """Judges pods by one installation's rules. One event loop owns it."""

    def __init__(self, rules: AdmissionRules) -> None:
        self._rules = rules
        self._looks: dict[bytes, Look] = {}

    def __call__(self, pod: Relevant, about: AdmissionCircumstances = ANY) -> AdmissionResult:
        """What `mutate` answers. Raises what `pod.read` raises."""
        return judge(self._look(pod), self._rules, about)

    def _look(self, pod: Relevant) -> Look:
        key = pod.key()
        if key is None:
            return look_at(pod.read(), self._rules)
        known = self._looks.get(key)
        if known is None:
            known = look_at(pod.read(), self._rules)
            if len(self._looks) >= MOST_LOOKS:
                self._looks.clear()
            self._looks[key] = known
        return known
