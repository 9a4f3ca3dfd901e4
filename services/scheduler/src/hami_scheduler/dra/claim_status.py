"""`status.allocation` of a ResourceClaim, as the ledger's grant has it.

Every write is noted in `waiting.py`, which goes by it until the watch has caught up.
"""

from __future__ import annotations

from hamicommon.domain.allocations import Allocation
from hamicommon.dra.requests import ClaimedSlices
from hamicommon.dra.status import allocated_status, held_by_others, is_allocated, is_of_grant
from hamicommon.errors import Conflict
from hamicommon.k8s.types import Json

from hami_scheduler.dra.waiting import WaitingClaims
from hami_scheduler.ports import ClaimWriter


class ClaimStatus:
    """Writes and clears allocations."""

    def __init__(self, api: ClaimWriter, waiting: WaitingClaims) -> None:
        self._api = api
        self._waiting = waiting

    async def write(self, claim: Json, live: Allocation, slices: ClaimedSlices, pool: str) -> None:
        """Allocates what the grant has to the claim, if it is not so already.

        Raises: Conflict, Forbidden, NotFound, Unavailable.
        """
        if is_allocated(claim):
            if is_of_grant(claim, live):
                return
            if held_by_others(claim, live.pod_uid):
                raise Conflict(f"claim {claim['metadata']['name']} is held by another pod")
            claim = await self.clear(claim)
        status = allocated_status(claim, live, slices.containers, pool=pool)
        claim = await self._api.protect(claim)
        self._waiting.wrote(claim)
        self._waiting.wrote(await self._api.set_status(claim, status))

    async def clear(self, claim: Json) -> Json:
        """Takes the claim's allocation away; the claim as it is then.

        Raises: Conflict, Forbidden, NotFound, Unavailable.
        """
        uid = str(claim["metadata"]["uid"])
        self._waiting.clearing.add(uid)
        try:
            answer = await self._api.set_status(claim, {"allocation": None, "reservedFor": None})
            self._waiting.wrote(answer)
        finally:
            self._waiting.clearing.discard(uid)
        return answer
