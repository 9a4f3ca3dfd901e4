"""The ledger allocates to ResourceClaims: a grant first, then `status.allocation` from it.

In: pods that wait with claims of ours (`waiting.py`). The row of the ledger is the truth: what is
written into a claim is derived from it, so a replica that finds a row without its claims (this one
after a restart, or another) writes just the same. What ends a grant before its pod is on its
node: kube-scheduler takes the allocation away, because the node does not fit for another reason;
the pod does not come for too long; the pod goes. The first two give the cards back here, and the
pod is placed again on another node; the pod watch does the third.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState, Origin
from hamicommon.domain.ids import PodUid
from hamicommon.dra.requests import ClaimedSlices
from hamicommon.dra.status import (
    held_by_others,
    is_allocated,
    is_of_grant,
)
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.dra.candidates import Candidates
from hami_scheduler.dra.claim_status import ClaimStatus
from hami_scheduler.dra.grants import ClaimGrants
from hami_scheduler.dra.placing import ClaimPlacing
from hami_scheduler.dra.turns import Turns
from hami_scheduler.dra.waiting import ClaimingPod, WaitingClaims
from hami_scheduler.ledger.state_machine import facts_of

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""Pods whose claims are written at the same time."""
LOOK_EVERY_S = 0.5
CLEARED = "kube-scheduler took the allocation away: the node does not fit the pod"
NOT_COME = "kube-scheduler did not bind the pod in time"


class ClaimLead:
    """The loop."""

    def __init__(
        self,
        *,
        waiting: WaitingClaims,
        candidates: Candidates,
        synced: Callable[[], bool],
        status: ClaimStatus,
        grants: ClaimGrants,
        placing: ClaimPlacing,
        turns: Turns,
        bulkhead: Bulkhead,
    ) -> None:
        self._waiting = waiting
        self._candidates = candidates
        self._synced = synced
        self._status = status
        self._grants = grants
        self._placing = placing
        self._turns = turns
        self._bulkhead = bulkhead
        self._freed = False
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._refused: set[PodUid] = set()
        """Pods that ask for what can't be; another pod or claim may change that."""

    def freed(self) -> None:
        """Something became free."""
        self._freed = True
        self._waiting.woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._waiting.woken.wait()
            self._waiting.woken.clear()
            if self._synced():
                await self.once()

    async def once(self) -> None:
        """Looks at every pod that is due."""
        waiting = self._waiting
        self._keep(waiting.pods)
        if self._freed:
            self._freed = False
            waiting.due.update(pod.uid for pod in await self._placing.fitting())
        waiting.due.update(self._turns.due())
        due = [waiting.pods[uid] for uid in waiting.due if uid in waiting.pods]
        waiting.due.clear()
        async with asyncio.TaskGroup() as tasks:
            for claiming in sorted(due, key=lambda each: each.order):
                tasks.create_task(self._turn(claiming))

    async def sweep(self) -> None:
        """What nobody waits for is taken away, and what was passed over is due.

        Raises: Conflict, Forbidden, Unavailable.
        """
        if not self._synced():
            return
        for claim in filter(self._candidates.has_allocated, self._waiting.unused()):
            await self._status.clear(claim)
        known = self._turns.known | self._refused
        refused = {pod.uid for pod in self._placing.refused.in_order()}
        self._waiting.due.update(self._waiting.pods.keys() - known - refused)
        self._waiting.woken.set()

    def _keep(self, uids: Collection[PodUid]) -> None:
        """Forgets all pods but these."""
        self._turns.keep(uids)
        self._refused &= set(uids)
        self._candidates.keep(uids)
        for pod in self._placing.refused.in_order():
            if pod.uid not in uids:
                self._placing.refused.remove(pod.uid)

    async def _turn(self, claiming: ClaimingPod) -> None:
        uid = PodUid(claiming.pod["metadata"]["uid"])
        async with self._gate:
            try:
                with self._bulkhead.item("claims", uid):
                    await self._look(uid, claiming)
                self._turns.succeeded(uid)
            except HamiError as exc:
                wait_s = self._turns.failed(uid)
                extra = {"pod_uid": uid, "error": clip(str(exc)), "retry_s": wait_s}
                logger.info("claims not allocated, retrying", extra=extra)

    async def _look(self, uid: PodUid, claiming: ClaimingPod) -> None:
        """Raises: Conflict, Forbidden, NotFound, InvalidRequest, Unavailable."""
        self._refused.discard(uid)
        claims = self._waiting.of(claiming)
        if not claims:
            return
        ends = self._ends(uid, claiming)
        done = all(map(is_allocated, claims.values()))
        if done and not ends and (self._turns.holds(uid) or facts_of(claiming.pod).node):
            return
        live = await self._grants.live_of(uid)
        try:
            slices = self._placing.slices(claiming.pod, claims)
        except InvalidRequest as exc:
            self._refuse(uid, claiming, str(exc))
            return
        if live is not None and live.origin is not Origin.CLAIM:
            return
        if live is not None and live.state is AllocationState.BINDING and ends:
            await self._withdraw(live, claims.values(), ends)
            claims, live = self._waiting.of(claiming) or {}, None
        self._waiting.cleared.discard(uid)
        if live is None:
            self._turns.let_go(uid)
            live = await self._placed(uid, claiming, claims, slices)
        if live is None:
            return
        pool = self._candidates.pool(live.node)
        for claim in (self._waiting.of(claiming) or {}).values():
            await self._status.write(claim, live, slices, pool)
        self._turns.hold(uid)

    def _refuse(self, uid: PodUid, claiming: ClaimingPod, why: str) -> None:
        self._refused.add(uid)
        self._placing.refuse(claiming.pod, why)

    def _ends(self, uid: PodUid, claiming: ClaimingPod) -> str:
        """Why the grant of a pod without a node is to end; empty: it is not."""
        if facts_of(claiming.pod).node is not None:
            return ""
        if uid in self._waiting.cleared:
            return CLEARED
        return NOT_COME if self._turns.held_too_long(uid) else ""

    async def _placed(
        self,
        uid: PodUid,
        claiming: ClaimingPod,
        claims: Mapping[str, Json],
        slices: ClaimedSlices,
    ) -> Allocation | None:
        for claim in claims.values():
            if not is_allocated(claim):
                continue
            if held_by_others(claim, uid):
                # kube-scheduler puts the pod on its node, beside those that hold it.
                return None
            if not self._candidates.has_allocated(claim):
                # On a node whose cards kube-scheduler allocates: it goes on with it.
                return None
            # Of a grant that has ended, or of no grant.
            await self._status.clear(claim)
        if self._waiting.first_of(claiming) != uid:
            # Another pod waits with the same claim: this one comes to what is allocated for that.
            return None
        return await self._placing.place(claiming.pod, slices, self._candidates.of(claiming.pod))

    async def _withdraw(self, live: Allocation, claims: Iterable[Json], why: str) -> None:
        """First the claims, then the cards: what the ledger gives back, nobody may use."""
        uid = live.pod_uid
        for claim in claims:
            # Another pod that is on its node with the claim keeps it.
            if is_allocated(claim) and is_of_grant(claim, live) and not held_by_others(claim, uid):
                await self._status.clear(claim)
        await self._grants.withdraw(live, why)
        self._turns.let_go(uid)
        self._turns.again_at(uid, self._candidates.miss(uid, live.node))
