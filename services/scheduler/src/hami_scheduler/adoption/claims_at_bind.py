"""Grants of what kube-scheduler allocated to a pod's ResourceClaims, as it binds the pod.

In: /bind of a pod without cards by limits. kube-scheduler writes what it allocated into the claims
before it asks, so the grant is entered here and not when the node prepares, where it would be too
late for another node. Where the ledger has no room, the allocation is taken off the claims: else
kube-scheduler would try the same card again, forever.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.dra.claims import claim_names, is_held_by_others
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import CapacityConflict, Forbidden, HamiError, NotFound
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.adoption.resource_claims import ClaimGrants
from hami_scheduler.adoption.running_pods import NodeQuestion
from hami_scheduler.ports.cluster import PodApi

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ClaimsAtBind:
    """Enters grants of claims for /bind.

    `lease_s`: so long a grant waits for its pod to be bound.
    """

    grants: ClaimGrants
    pods: PodApi
    claims: KubernetesClaimApi
    lease_s: float

    async def on_node(
        self, namespace: str, name: str, uid: PodUid, node: NodeName
    ) -> Allocation | None:
        """The grant of the pod's claims, in state `binding`; None: none of them is ours.

        Raises: NotFound, InvalidRequest, Conflict with the reason, Unavailable.
        """
        pod = await self.pods.get(namespace, name)
        if not (pod.get("spec") or {}).get("resourceClaims"):
            return None
        claims = await self._ours(namespace, pod)
        if not claims:
            return None
        asked = NodeQuestion(
            node=node, uid=uid, namespace=namespace, name=name, arriving_s=self.lease_s
        )
        try:
            return await self.grants.grant(asked)
        except CapacityConflict:
            for claim in claims:
                await self._take_back(claim, uid)
            raise

    async def _ours(self, namespace: str, pod: JsonMapping) -> list[Json]:
        """Return the claims with cards of ours; none if we may not read them."""
        try:
            found = [await self.claims.get(namespace, n) for n in claim_names(pod).values()]
        except Forbidden as exc:
            logger.info("Failed to read claims at /bind", extra={"error": clip(str(exc))})
            return []
        return [claim for claim in found if _has_cards(claim)]

    async def _take_back(self, claim: Json, uid: PodUid) -> None:
        """Take the claims' allocation back; otherwise kube-scheduler tries the same card again."""
        if is_held_by_others(claim, uid):
            return
        try:
            await self.claims.set_status(claim, {"allocation": None, "reservedFor": None})
        except NotFound:
            return
        except HamiError as exc:
            extra = {"claim": claim["metadata"]["name"], "error": clip(str(exc))}
            logger.warning("Failed to take back the allocation of a refused claim", extra=extra)


def _has_cards(claim: JsonMapping) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(result["driver"] == DRIVER for result in results)
