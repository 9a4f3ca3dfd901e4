"""A judged pod into the ledger: one transaction with its evidence, then its node's agent has it.

In: a claim and the result that `rules.py` came to. The pod is read once more at the API server; the
grant is published, and the agent serves it from then on.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from hamicommon.domain.allocations import AllocationState, Origin, Placement
from hamicommon.domain.ids import AllocationId
from hamicommon.domain.pod_ref import PodOwner, PodRef
from hamicommon.errors import NotFound, Unavailable
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft, Entry
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adoption.claims import Claim
from hami_scheduler.adoption.rules import AdoptionResult
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import ADOPTED, Announcer
from hami_scheduler.ports.cluster import GrantAnnouncer, PodApi
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)

ACTOR = "adopt"
REASON = "placed by HAMi, adopted"


@dataclass(eq=False, kw_only=True)
class AdoptionEntries:
    """Writes adopted pods.

    `label_keys`: labels of a pod that are kept with its owner.
    """

    ledger: AllocationStore
    pods: PodApi
    grants: GrantAnnouncer
    view: ClusterState
    announcer: Announcer
    instruments: SchedulerInstruments
    vendors: Vendors
    label_keys: Sequence[str] = ()

    async def write(self, claim: Claim, verdict: AdoptionResult) -> None:
        """Write the grant of one adopted pod.

        Raises: NotFound (the pod was deleted since), Conflict, CapacityConflict, Unavailable.
        """
        pod = await self.pods.get(claim.namespace, claim.name)
        facts = facts_of(pod)
        if facts.uid != claim.uid or facts.node != claim.node or is_over(pod):
            raise NotFound("it has ended or was replaced")
        # Its annotation could only be its author's: HAMi's webhook stamps no creator.
        owner = owner_of(pod, self.label_keys, stamped=False)
        change = await self.ledger.enter(self._entry(claim, verdict, owner))
        allocation = change.allocation
        self.view.apply(change)
        self.instruments.transitions.labels(AllocationState.ALLOCATED.value).inc()
        self.announcer.announce(
            PodRef(claim.namespace, claim.name, claim.uid),
            ADOPTED,
            "the ledger now has the devices that this pod got from HAMi on "
            f"{claim.node}; it keeps running",
            warning=False,
        )
        try:
            await self.grants.granted(grant_of(allocation))
        except Unavailable as exc:
            logger.warning(
                "Failed to publish an adopted pod's grant; the node gets it with the next snapshot",
                extra={"error": str(exc)},
            )

    def _entry(self, claim: Claim, verdict: AdoptionResult, owner: PodOwner) -> Entry:
        draft = Draft(
            allocation_id=AllocationId(str(uuid.uuid4())),
            pod_uid=claim.uid,
            namespace=claim.namespace,
            pod_name=claim.name,
            placement=Placement(node=claim.node, containers=verdict.containers),
            lease_s=0.0,
            quota=quota_amounts(verdict.containers, self.vendors),
            owner=owner,
            actor=ACTOR,
        )
        reason = f"{REASON}; {verdict.sentence}" if verdict.sentence else REASON
        return Entry(
            draft=draft,
            state=AllocationState.ALLOCATED,
            origin=Origin.ADOPTED,
            reason=reason,
            evidence=verdict.evidence,
        )


def is_over(pod: JsonMapping) -> bool:
    """Whether the pod has ended."""
    return (pod.get("status") or {}).get("phase") in TERMINAL_PHASES
