"""`GET /v1/undecided-pods`: pods that wait and never came to /filter, so without a decision.

Either kube-scheduler allocates their ResourceClaims, or it refuses every node by itself (cordoned,
tainted, no CPU): the reason is its own, in the pod's condition PodScheduled. Or the pod names a
resource that is nearly one of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hamicommon.admission.mistakes.typos import misspelt_resources
from hamicommon.domain.ids import PodUid
from hamicommon.dra.claims import claim_names
from hamicommon.dra.requests import amounts_of, is_ours
from hamicommon.errors import Forbidden, NotFound
from hamicommon.explain.unscheduled import unallocated, waits, why_undecided
from hamicommon.k8s.annotations import CLAIM_SHAPE, annotations_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.vendors.pod_request import wants_devices
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi

CLAIMS = "ResourceClaims"
MISSPELT = "MisspeltResource"
UNSCHEDULABLE = "Unschedulable"
"""Reason codes."""
MAX_PODS = 500
"""The oldest; their claims are read one by one."""
_MAX_CONCURRENT_READS = 8
_MIB = 2**20
AMOUNTS = ("card_count", "memory_bytes", "memory_ratio", "core_ratio")


@dataclass(eq=False, kw_only=True)
class UndecidedPods:
    """The use case.

    `pods`: all that the pod watch knows; `came`: whether a pod has come to /filter.
    """

    pods: Callable[[], Iterable[JsonMapping]]
    claims: KubernetesClaimApi
    vendors: Vendors
    scheduler_name: str
    came: Callable[[PodUid], bool]

    async def waiting(self, namespace: str | None) -> list[Row]:
        """The oldest first, with the columns of the question `waiting-pods`.

        Pods that want nothing of ours are not among them. Raises: Unavailable.
        """
        found = (
            pod
            for pod in self.pods()
            if waits(pod) and namespace in (None, pod["metadata"].get("namespace"))
            if not self.came(PodUid(pod["metadata"]["uid"]))
        )
        pods = sorted(
            found,
            key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["uid"]),
        )
        turns = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def row(pod: JsonMapping) -> Row | None:
            async with turns:
                return await self._row(pod)

        rows = await asyncio.gather(*map(row, pods[:MAX_PODS]))
        return [each for each in rows if each is not None]

    async def _row(self, pod: JsonMapping) -> Row | None:
        """Return the row of a pod; None: it wants nothing of ours."""
        if pod["spec"].get("resourceClaims") and (asked := await self._asked_by_claims(pod)):
            return _row(pod, CLAIMS, unallocated(pod), asked)
        copy = dict(pod)
        if wants_devices(copy, self.vendors):
            ours = pod["spec"].get("schedulerName") == self.scheduler_name
            summary = why_undecided(pod, self.vendors, self.scheduler_name)
            return _row(pod, UNSCHEDULABLE, summary) if ours else None
        if mistakes := misspelt_resources(copy, self.vendors):
            return _row(pod, MISSPELT, "; ".join(mistakes))
        return None

    async def _asked_by_claims(self, pod: JsonMapping) -> Row | None:
        """Return the amounts of a pod whose claims are ours; None: they are not.

        Where we may not read claims, claims of ours are switched off.
        """
        try:
            claims = await self._claims_of(pod)
        except Forbidden:
            return None
        ours = {name: claim for name, claim in claims.items() if is_ours(claim)}
        return _amounts(ours.values()) if ours or CLAIM_SHAPE in annotations_of(pod) else None

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


def _row(pod: JsonMapping, reason_code: str, summary: str, asked: Row | None = None) -> Row:
    metadata = pod["metadata"]
    return {
        "since_at": metadata.get("creationTimestamp"),
        "pod_uid": metadata["uid"],
        "namespace": metadata.get("namespace"),
        "pod_name": metadata["name"],
        **(asked or dict.fromkeys(AMOUNTS)),
        "reason_code": reason_code,
        "summary": summary,
    }


def _amounts(claims: Iterable[JsonMapping]) -> Row:
    """Return the amounts asked of each card, if the claims state them."""
    asked = amounts_of(claims)
    if asked is None:
        return dict.fromkeys(AMOUNTS)
    return {
        "card_count": asked.card_count,
        "memory_bytes": asked.memory_mib * _MIB or None,
        "memory_ratio": 1.0 if asked.whole_memory else None,
        "core_ratio": asked.core_percent / 100,
    }
