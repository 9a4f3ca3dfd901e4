"""`GET /v1/pods-by-claims`: pods whose ResourceClaims nobody has allocated yet, and why.

kube-scheduler allocates claims, so no decision of ours is recorded about such a pod: the reason is
kube-scheduler's, in the pod's condition PodScheduled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hamicommon.dra.claims import claim_names
from hamicommon.dra.requests import amounts_of, is_ours
from hamicommon.errors import Forbidden, NotFound
from hamicommon.explain.unscheduled import claims_wait, unallocated
from hamicommon.k8s.annotations import CLAIM_SHAPE, annotations_of
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi

REASON_CODE = "ResourceClaims"
MAX_PODS = 500
"""The oldest; their claims are read one by one."""
_MAX_CONCURRENT_READS = 8
_MIB = 2**20


@dataclass(eq=False)
class PodsByClaims:
    """The use case.

    `pods`: all that the pod watch knows.
    """

    pods: Callable[[], Iterable[JsonMapping]]
    claims: KubernetesClaimApi

    async def waiting(self, namespace: str | None) -> list[Row]:
        """The oldest first, with the columns of the question `waiting-pods`.

        Pods of other drivers' claims are not among them, and none where we may not read claims,
        which is so where claims of ours are switched off. Raises: Unavailable.
        """
        pods = sorted(
            (
                pod
                for pod in self.pods()
                if claims_wait(pod) and namespace in (None, pod["metadata"].get("namespace"))
            ),
            key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["uid"]),
        )
        turns = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def row(pod: JsonMapping) -> Row | None:
            async with turns:
                return await self._row(pod)

        try:
            rows = await asyncio.gather(*map(row, pods[:MAX_PODS]))
        except Forbidden:
            return []
        return [each for each in rows if each is not None]

    async def _row(self, pod: JsonMapping) -> Row | None:
        metadata, claims = pod["metadata"], await self._claims_of(pod)
        ours = {name: claim for name, claim in claims.items() if is_ours(claim)}
        if not ours and CLAIM_SHAPE not in annotations_of(pod):
            return None
        return {
            "since_at": metadata.get("creationTimestamp"),
            "pod_uid": metadata["uid"],
            "namespace": metadata.get("namespace"),
            "pod_name": metadata["name"],
            **_amounts(ours.values()),
            "reason_code": REASON_CODE,
            "summary": unallocated(pod),
        }

    async def _claims_of(self, pod: JsonMapping) -> dict[str, Json]:
        """Return the claims that exist; a claim may still have to be made from its template."""
        found: dict[str, Json] = {}
        try:
            names = claim_names(pod)
        except NotFound:
            return found
        for key, name in names.items():
            try:
                found[key] = await self.claims.get(pod["metadata"].get("namespace", ""), name)
            except NotFound:
                continue
        return found


def _amounts(claims: Iterable[JsonMapping]) -> Row:
    """Return the amounts asked of each card, if the claims state them."""
    asked = amounts_of(claims)
    if asked is None:
        return dict.fromkeys(("card_count", "memory_bytes", "memory_ratio", "core_ratio"))
    return {
        "card_count": asked.card_count,
        "memory_bytes": asked.memory_mib * _MIB or None,
        "memory_ratio": 1.0 if asked.whole_memory else None,
        "core_ratio": asked.core_percent / 100,
    }
