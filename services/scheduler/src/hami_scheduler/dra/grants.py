"""The ledger's grants of pods with claims: looked up, and given back before their pod came."""

from __future__ import annotations

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import PodUid

from hami_scheduler.ledger.state_machine import Transition
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.ports import AllocationStore

ACTOR = "claims"


class ClaimGrants:
    """What the ledger has for them."""

    def __init__(self, store: AllocationStore, transitions: Transitions) -> None:
        self._store = store
        self._transitions = transitions

    async def live_of(self, uid: PodUid) -> Allocation | None:
        """The pod's grant, if one is live. Raises: Unavailable."""
        return await self._store.live_of(uid)

    async def withdraw(self, live: Allocation, reason: str) -> None:
        """Gives the grant's cards back. Raises: Conflict, Unavailable."""
        step = Transition(target=AllocationState.RELEASED, reason=reason)
        await self._transitions.apply(live, step, actor=ACTOR, token=live.token)
