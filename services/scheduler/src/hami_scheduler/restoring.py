"""Grants that the ledger lost, as after the restore of an older backup (F45).

In: a pod that runs on its node and has no grant, met by the reconciler. Its `hami.io/grant` was
signed by our own scheduler for this very pod and node, so it was granted; if the ledger has never
heard of that grant, the ledger is the older of the two, and the grant is entered again, with its
own id and with the signed text as evidence. A grant that the ledger knows has ended there, and
stays ended. Nothing that a user can write makes a grant: the signature is over pod, node and cards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from hamicommon.db.ledger import CardCounters, Draft, Entry, QuotaAmounts
from hamicommon.domain.allocations import AllocationState, ContainerGrant, Origin, Placement
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, InvalidRequest
from hamicommon.grants import Grant
from hamicommon.k8s.annotations import GRANT, annotations_of

from hami_scheduler.domain.lifecycle import PodFacts, facts_of
from hami_scheduler.ports import AllocationStore

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]
ACTOR = "reconciler"
REASON = "the ledger had lost it; restored from the grant that we signed"


class Outcome(StrEnum):
    """What came of it."""

    NONE = "none"
    """It carries no grant of ours that the ledger could have lost."""
    RESTORED = "restored"
    LATER = "later"
    """Its card is not known yet, or somebody else was quicker: to be looked at again."""


class Restoring:
    """Enters lost grants again."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        apply: Callable[[Iterable[CardCounters]], None],
        read_signed: Callable[[str], Grant],
        quota_of: Callable[[Sequence[ContainerGrant]], QuotaAmounts],
    ) -> None:
        self._store = store
        self._apply = apply
        self._read_signed = read_signed
        self._quota_of = quota_of

    async def restore(self, pod: Json) -> Outcome:
        """Enters the pod's grant if the ledger lost it. Raises: Unavailable."""
        facts = facts_of(pod)
        grant = self._signed_for(pod, facts)
        if grant is None or await self._store.get(AllocationId(grant.allocation_id)) is not None:
            return Outcome.NONE
        try:
            change = await self._store.enter(self._entry(pod, grant, facts))
        except (CapacityConflict, Conflict) as exc:
            logger.warning("lost grant not restored", extra={"error": str(exc)})
            return Outcome.LATER
        self._apply(change.counters)
        logger.info("lost grant restored", extra={"pod_uid": facts.uid, "node": grant.node})
        return Outcome.RESTORED

    def _signed_for(self, pod: Json, facts: PodFacts) -> Grant | None:
        text = annotations_of(pod).get(GRANT, "")
        if not text:
            return None
        try:
            grant = self._read_signed(text)
        except InvalidRequest as exc:
            logger.warning("a grant that we did not sign", extra={"error": str(exc)})
            return None
        if (grant.pod_uid, grant.node) != (facts.uid, facts.node):
            return None
        return grant

    def _entry(self, pod: Json, grant: Grant, facts: PodFacts) -> Entry:
        containers = grant.domain_containers()
        draft = Draft(
            allocation_id=AllocationId(grant.allocation_id),
            pod_uid=PodUid(grant.pod_uid),
            namespace=grant.namespace,
            pod_name=grant.pod_name,
            placement=Placement(node=NodeName(grant.node), containers=containers),
            lease_s=0.0,
            quota=self._quota_of(containers),
            traceparent=grant.traceparent,
            actor=ACTOR,
        )
        return Entry(
            draft=draft,
            state=AllocationState.ALLOCATED if facts.started else AllocationState.BOUND,
            # Its slices are held, whether the cards have room for them in the ledger or not.
            origin=Origin.ADOPTED,
            reason=REASON,
            evidence={"grant": annotations_of(pod)[GRANT], "token": grant.token},
        )
