"""Pods that wait with claims, and the claims, as the watches show them.

Fed by the handlers of the pod and claim informers; `lead.py` takes what is due from here. A claim
that was just written counts as it was answered until the watch has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from hamicommon.domain.ids import PodUid
from hamicommon.dra.claims import claim_names
from hamicommon.dra.requests import is_ours
from hamicommon.dra.status import is_allocated
from hamicommon.errors import NotFound
from hamicommon.k8s.informer import Key, key_of
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of


@dataclass(slots=True, kw_only=True)
class ClaimingPod:
    """A pod that has no node yet, or no started container."""

    pod: JsonMapping
    claims: frozenset[Key]

    @property
    def order(self) -> tuple[int, str, str]:
        """As in kube-scheduler's queue: highest priority first, then oldest."""
        metadata = self.pod["metadata"]
        priority = int((self.pod.get("spec") or {}).get("priority") or 0)
        return -priority, str(metadata.get("creationTimestamp") or ""), str(metadata["uid"])


@dataclass(slots=True)
class WaitingClaims:
    """All of them, and which are due."""

    claims: Mapping[Key, Json] = field(default_factory=dict)
    """The claim informer's store."""
    pods: dict[PodUid, ClaimingPod] = field(default_factory=dict)
    due: set[PodUid] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """Some pod became due."""
    cleared: set[PodUid] = field(default_factory=set)
    """Pods of whose claims somebody else has taken the allocation away."""
    clearing: set[str] = field(default_factory=set)
    """Uids of claims whose allocation we take away at this moment."""
    _users: dict[Key, set[PodUid]] = field(default_factory=dict)
    _answers: dict[str, Json] = field(default_factory=dict)
    """By claim uid: what the API server answered to our last write."""

    def pod_seen(self, pod: JsonMapping) -> None:
        """The pod was made or changed."""
        facts = facts_of(pod)
        over = facts.deleting or facts.phase in TERMINAL_PHASES or facts.started
        if over or not (pod.get("spec") or {}).get("resourceClaims"):
            self.forget(facts.uid)
            return
        if pod["spec"].get("schedulingGates"):
            return
        self._unlink(facts.uid)
        try:
            names = claim_names(pod)
        except NotFound:
            # Its claims are still to be made from their templates; it changes when they are.
            names = {}
        namespace = str(pod["metadata"].get("namespace") or "default")
        keys = frozenset((namespace, name) for name in names.values())
        self.pods[facts.uid] = ClaimingPod(pod=pod, claims=keys)
        for key in keys:
            self._users.setdefault(key, set()).add(facts.uid)
        if names:
            self._note({facts.uid})

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or needs nothing any more."""
        self._unlink(uid)
        self.pods.pop(uid, None)
        self.due.discard(uid)
        self.cleared.discard(uid)

    def _unlink(self, uid: PodUid) -> None:
        known = self.pods.get(uid)
        for key in known.claims if known else ():
            users = self._users.get(key, set())
            users.discard(uid)
            if not users:
                self._users.pop(key, None)

    def claim_seen(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """The claim was made or changed."""
        users = self._users.get(key_of(new), set())
        uid = str(new["metadata"]["uid"])
        answer = self._answers.get(uid)
        ours = answer is not None and _version(answer) >= _version(new)
        if answer is not None and _version(new) >= _version(answer):
            self._answers.pop(uid)
        if ours:
            return
        self._note(users)
        lost = old is not None and is_allocated(old) and not is_allocated(new)
        if lost and uid not in self.clearing:
            self.cleared.update(users)

    def claim_gone(self, claim: JsonMapping) -> None:
        """The claim was deleted."""
        self._answers.pop(str(claim["metadata"]["uid"]), None)
        self._note(self._users.get(key_of(claim), set()))

    def _note(self, uids: Set[PodUid]) -> None:
        if uids:
            self.due.update(uids)
            self.woken.set()

    def wrote(self, claim: Json) -> None:
        """The API server's answer to a write of ours."""
        seen = self.claims.get(key_of(claim))
        if seen is None or _version(seen) < _version(claim):
            self._answers[str(claim["metadata"]["uid"])] = claim

    def of(self, claiming: ClaimingPod) -> dict[str, Json] | None:
        """Its claims that are ours, by `claim_names`' keys; None while one is not there."""
        namespace = str(claiming.pod["metadata"].get("namespace") or "default")
        found = {}
        for key, name in claim_names(claiming.pod).items():
            claim = self.claims.get((namespace, name))
            if claim is None or claim["metadata"].get("deletionTimestamp"):
                return None
            answer = self._answers.get(str(claim["metadata"]["uid"]))
            newest = claim if answer is None or _version(answer) < _version(claim) else answer
            if is_ours(newest):
                found[key] = newest
        return found

    def first_of(self, claiming: ClaimingPod) -> PodUid:
        """Of the waiting pods with the same claims, which is placed for all of them."""
        users = {uid for key in claiming.claims for uid in self._users.get(key, ())}
        return min(users, key=lambda uid: self.pods[uid].order)

    def unused(self) -> list[Json]:
        """Claims of ours with an allocation that nobody has reserved, and no waiting pod names."""
        return [
            claim
            for key, claim in self.claims.items()
            if is_allocated(claim)
            and key not in self._users
            and str(claim["metadata"]["uid"]) not in self._answers
            and not claim["status"].get("reservedFor")
            and is_ours(claim)
        ]


def _version(item: JsonMapping) -> int:
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
