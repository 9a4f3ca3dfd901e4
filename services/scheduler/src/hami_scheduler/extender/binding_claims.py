"""From a reservation to a claimed binding: the row in state `binding`, with a new token.

In: /bind's arguments. One guarded statement takes the usual row over, for all bindings that begin
at the same moment (`process/batches.py`); what it does not meet is read and decided row by row:
bound already, held elsewhere, or not reserved yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.ledger.model import BindingClaim, StateStep
from hamicommon.process.batches import Batches

from hami_scheduler.extender.protocol import BindArgs
from hami_scheduler.ledger.reservations.early import EarlyReservations
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports import AllocationStore

ACTOR = "scheduler"
# After the lock's longest wait: patch, binding and reading back, each at most 10 s.
BINDING_EXTRA_S = 30.0
_CLAIMS = 3
# kube-scheduler decides on one pod after the other, so their claims come one by one; in a burst a
# pod waits this long at most, and a dozen share a statement and a commit.
PACE_S = 0.03
# Looks for a reservation that may be on its way, PACE_S apart; it takes as long at most.
_ELSEWHERE = 3
_BOUND = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})

PlaceOnNode = Callable[
    [str, str, PodUid, NodeName, Allocation | None], Awaitable[Allocation | None]
]
"""(namespace, name, uid, node, reservation to replace) -> a reservation on exactly that node, or a
grant of claims in state `binding`; None for a pod that asks for no card."""


class NoCards(Exception):
    """The pod asks for no card."""


class ClaimedBinding(NamedTuple):
    """What /bind is to carry out."""

    allocation: Allocation
    taken_over: bool = False
    """Another binder had claimed it, and may have bound the pod before it died."""


class BindingClaims:
    """Claims reservations for /bind."""

    def __init__(
        self,
        store: AllocationStore,
        *,
        early: EarlyReservations,
        place_on_node: PlaceOnNode,
        instruments: SchedulerInstruments,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: as long as a call of /bind may take."""
        self._store = store
        self._early = early
        self._place_on_node = place_on_node
        self._instruments = instruments
        self._lease_s = timeout_s + BINDING_EXTRA_S
        self._batches = Batches[BindingClaim, Allocation | None](
            store.claim_all, key=lambda claim: claim.pod_uid, pace_s=PACE_S
        )

    async def run(self) -> None:
        """Writes what goes in batches, until cancelled."""
        await self._batches.run()

    async def claim(self, args: BindArgs) -> ClaimedBinding:
        """The allocation in state `binding` with a new token; as it is when it is bound on the node
        already by its row.

        Raises: NoCards when there is nothing to claim, Conflict, NotFound, Unavailable, and what
        `PlaceOnNode` does.
        """
        uid, node = PodUid(args.pod_uid), NodeName(args.node)
        claim = BindingClaim(pod_uid=uid, node=node, actor=ACTOR, lease_s=self._lease_s)
        claimed = await self._early.claim(claim) or await self._batches.ask(claim)
        if claimed is not None:
            self._count()
            return ClaimedBinding(claimed)
        waits = _ELSEWHERE if self._early.enabled else 0
        for look in range(_CLAIMS + waits):
            live = await self._store.live_of(uid)
            if live is None and look < waits:
                # Another replica may have answered /filter, and be writing the reservation.
                await asyncio.sleep(PACE_S)
                continue
            if live is not None and live.node == node and live.state in _BOUND:
                return ClaimedBinding(live)
            if live is not None and live.state is not AllocationState.RESERVED:
                if live.node != node or live.state is not AllocationState.BINDING:
                    raise Conflict(f"the pod is {live.state} on node {live.node}, not on {node}")
            elif live is None or live.node != node:
                live = await self._place_on_node(args.pod_namespace, args.pod_name, uid, node, live)
                if live is None:
                    raise NoCards
                if live.state is AllocationState.BINDING:
                    # Of claims: entered just now, with its token.
                    return ClaimedBinding(live)
            change = await self._store.advance(
                StateStep(
                    allocation_id=live.id,
                    sources=frozenset({live.state}),
                    target=AllocationState.BINDING,
                    actor=ACTOR,
                    token=live.token,
                    new_token=True,
                    lease_s=self._lease_s,
                )
            )
            if change is not None:
                self._count()
                taken_over = live.state is AllocationState.BINDING
                return ClaimedBinding(change.allocation, taken_over=taken_over)
        raise Conflict(f"the reservation of pod {uid} changed {_CLAIMS} times while it was bound")

    async def check(self, allocation: Allocation) -> None:
        """Raises: Conflict when another binder has claimed it since, Unavailable."""
        row = await self._store.get(allocation.id)
        if row is None or row.state is not AllocationState.BINDING or row.token != allocation.token:
            # Also when it is bound by now: the caller looks at the pod itself.
            now = "gone" if row is None else f"{row.state} with token {row.token}"
            raise Conflict(
                f"the grant of pod {allocation.pod_uid} was taken over while it was bound: {now}"
            )

    def _count(self) -> None:
        self._instruments.transitions.labels(AllocationState.BINDING.value).inc()
