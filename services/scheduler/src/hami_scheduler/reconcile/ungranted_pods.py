"""Pods that are bound to a node and have no grant: the ledger lost it, or they came past us.

In: a pod that asks for our cards, met by the reconciler. A grant that the ledger lost is entered
again (`restore.py`; that of a pod that runs by ResourceClaims from the claims, `adoption/`); a pod
that was bound without the scheduler gets one event with what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.drift import Drift
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.pod_events import UNMANAGED, Announcer
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.reconcile.restore import REASON, GrantRestorer, Outcome

if TYPE_CHECKING:
    from hami_scheduler.adoption.claim_holders import ClaimHolders

CLASS = "pod-without-grant"
CLAIMS_REASON = "restored from the allocation of its ResourceClaims"
UNMANAGED_TEXT = (
    "this pod was bound to node {node} without the scheduler {scheduler} and has no grant: its "
    "containers don't start; remove spec.nodeName and set spec.schedulerName: {scheduler}; a pod "
    "that HAMi started is taken over by `hamictl adopt`"
)


CLAIMS_TEXT = "this pod runs on node {node} with ResourceClaims but has no grant: {why}"


@dataclass(eq=False, kw_only=True)
class UngrantedPods:
    """Restores what was lost, and reports the others, each pod once."""

    store: AllocationStore
    restorer: GrantRestorer
    claimed: ClaimHolders
    drift: Drift
    announcer: Announcer
    wants_devices: Callable[[JsonMapping], bool]
    scheduler_name: str
    _reported: set[PodUid] = field(default_factory=set, init=False)
    """They stand until the pod is gone or has a grant."""
    _others: set[PodUid] = field(default_factory=set, init=False)
    """Pods whose claims are none of ours."""

    def keep(self, held: Collection[PodUid], pods: Mapping[PodUid, JsonMapping]) -> None:
        """Forget what was settled; a comparison of all pods is over.

        `held`: pods with a grant; `pods`: all that are watched.
        """
        self._reported = {
            uid
            for uid in self._reported
            if uid in pods and uid not in held and facts_of(pods[uid]).phase not in TERMINAL_PHASES
        }
        self._others &= pods.keys()
        self.drift.show_standing(CLASS, len(self._reported))

    async def check(self, uid: PodUid, pod: JsonMapping) -> int:
        """How many differences the pod is, 0 or 1. Raises: Conflict, Unavailable."""
        facts = facts_of(pod)
        if (
            facts.node is None
            or facts.deleting
            or facts.phase in TERMINAL_PHASES
            or uid in self._reported
        ):
            return 0
        wants_devices = self.wants_devices(pod)
        # Before it has started, its node asks when it prepares the claims.
        by_claims = facts.started and uid not in self._others and _has_claims(pod)
        if not (wants_devices or by_claims) or await self.store.live_of(uid) is not None:
            return 0
        if not wants_devices:
            return await self._check_claims(uid, pod, str(facts.node))
        lost = await self.restorer.restore(pod)
        if lost is Outcome.RESTORED:
            await self._restored(uid, pod, REASON)
        elif lost is Outcome.NONE:
            text = UNMANAGED_TEXT.format(node=facts.node, scheduler=self.scheduler_name)
            await self._report(uid, pod, text)
        return 1

    async def _check_claims(self, uid: PodUid, pod: JsonMapping, node: str) -> int:
        try:
            ours = await self.claimed.restore(pod)
        except Conflict as exc:
            await self._report(uid, pod, CLAIMS_TEXT.format(node=node, why=exc))
            return 1
        if not ours:
            self._others.add(uid)
            return 0
        await self._restored(uid, pod, CLAIMS_REASON)
        return 1

    async def _restored(self, uid: PodUid, pod: JsonMapping, reason: str) -> None:
        await self.drift.note("grant-lost", _subject(uid, pod), reason, repaired=True)

    async def _report(self, uid: PodUid, pod: JsonMapping, text: str) -> None:
        self._reported.add(uid)
        metadata = pod["metadata"]
        ref = PodRef(metadata["namespace"], metadata["name"], uid)
        self.announcer.announce(ref, UNMANAGED, text)
        await self.drift.note(CLASS, _subject(uid, pod), text, repaired=False)


def _has_claims(pod: JsonMapping) -> bool:
    return bool((pod.get("spec") or {}).get("resourceClaims"))


def _subject(uid: PodUid, pod: JsonMapping) -> str:
    metadata = pod["metadata"]
    return f"{metadata['namespace']}/{metadata['name']} ({uid})"
