"""PreStartContainer: before every start, the limits in the answer must be the owner's own.

In: the ids of the container about to start. `container_owners.py` finds whose, `ownership.py`
decides, and this carries it out: nothing, limits rewritten, or an error that keeps the container
from starting (HAMi#3096). Where the kubelet gave other cards than granted, the ledger is asked
first (`device_moves.py`): what starts is counted where it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, InvalidRequest, Unavailable

from hami_node_agent.adoption.adopted import AdoptedAnswers
from hami_node_agent.adoption.unmanaged import UnmanagedPods
from hami_node_agent.allocation.container_owners import ContainerOwners
from hami_node_agent.allocation.node_ports import NodePorts
from hami_node_agent.allocation.seats import exchange_for
from hami_node_agent.allocation.whole_cards import are_whole_cards
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ownership import (
    TRY_AGAIN,
    Confirmed,
    Reassigned,
    RefusedHolding,
    Verdict,
    displaced,
    others_astray,
    partners_of,
    record_of,
    verdict,
)
from hami_node_agent.grants.ports import (
    CardMoves,
)
from hami_node_agent.grants.records import AgentState, Record, is_complete
from hami_node_agent.grants.signed import refresh_book
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)

# Two pods that got each other's answers are admitted one after the other, within a moment. Until
# the kubelet shows both, the first finds the second's card full.
PARTNER_WAIT_S = 2.0


_WITHOUT_LIBRARY = (
    "the kubelet gave it the answer of a pod with whole cards, which is without the library that "
    f"holds limits; {TRY_AGAIN}"
)
_OTHER_DEVICES = (
    "the kubelet gave it the answer of another container, whose MIG devices are not those that it "
    f"was granted; {TRY_AGAIN}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    holding: RefusedHolding
    final: bool
    """False for the ledger's refusal: a partner that the kubelet is admitting may change it."""


class LateStarts(Protocol):
    """Starts of containers that were bound late."""

    async def check(self, ids: frozenset[str]) -> bool:
        """Returns when the container may start; False: it was not bound late. Raises: HamiError."""


class PreStart:
    """The PreStartContainer use case; one call at a time."""

    def __init__(
        self,
        node: NodePorts,
        *,
        moves: CardMoves,
        adopted: AdoptedAnswers,
        unmanaged: UnmanagedPods | None,
        mig: MigInstances | None = None,
        late: LateStarts | None = None,
        library: bool = True,
    ) -> None:
        """`late`: checks starts of containers that were answered before late binding was switched
        off. `library`: containers that have a part of a card are held by libvgpu.
        """
        self._late = late
        self._state = node.state
        self._owners = ContainerOwners(node.kubelet_state, node.pods)
        self._source = node.source
        self._pods = node.pods
        self._files = node.files
        self._reports = node.reports
        self._moves = moves
        self._adopted = adopted
        self._unmanaged = unmanaged
        self._mig = mig
        self._library = library
        self._turn = asyncio.Lock()

    async def check(self, ids: frozenset[str]) -> None:
        """Returns when the container with these ids may start.

        Raises: Conflict when it must not, Unavailable when that can't be known now.
        """
        deadline = time.monotonic() + PARTNER_WAIT_S
        while True:
            last = time.monotonic() >= deadline
            # The kubelet and the ledger are waited for before the lock: one container that the
            # kubelet shows late must not stop the others of the node.
            owners, holdings = await self._owners.of(ids)
            if await self._bound_late(ids, owners):
                return
            if not all(self._is_confirmed(owner) for owner in owners):
                await refresh_book(self._state, self._source, self._pods)
                await self._adopted.take_up()
            async with self._turn:
                refusals = [await self._settle(owner, holdings) for owner in owners]
            refused = max((one for one in refusals if one), key=lambda one: one.final, default=None)
            if refused is None:
                return
            if last or refused.final:
                await self._refuse(refused.holding)
            await self._owners.changed(holdings, deadline)

    def _is_confirmed(self, owner: Holding) -> bool:
        """Whether it starts as it is by what is known here.

        What is about to be changed or refused rests on the ledger's newest answer, and so does a
        start of which the book knows nothing (our own start, or an attempt that failed).
        """
        known = self._state.book.of(owner.pod_uid) is not None
        return known and isinstance(self._decide(owner), Confirmed)

    async def _bound_late(self, ids: frozenset[str], owners: Sequence[Holding]) -> bool:
        """True when the container's answer was but a name, and it may start.

        Raises: Conflict when it must not, Unavailable when that can't be known now.
        """
        if self._late is None or all(one.answer is None or one.answer.cards for one in owners):
            return False
        return await self._late.check(ids)

    async def _settle(self, owner: Holding, holdings: Sequence[Holding]) -> _Refusal | None:
        """Carries the verdict out; None when the container may start. Raises: Unavailable."""
        found = self._decide(owner)
        if (
            isinstance(found, RefusedHolding)
            and found.grant is None
            and self._unmanaged is not None
        ):
            found = await self._asked(self._unmanaged, owner, holdings, found)
        if isinstance(found, Reassigned) and found.after.plain and self._library:
            found = self._with_whole_cards(owner, found)
        if not isinstance(found, RefusedHolding) and self._mig is not None:
            found = await self._with_devices(self._mig, owner, found)
        if isinstance(found, RefusedHolding):
            return _Refusal(holding=found, final=True)
        if isinstance(found, Confirmed):
            await asyncio.to_thread(self._write, found.record)
            return None
        async with self._state.moving:
            reason = await self._not_counted(found, holdings)
            if reason:
                refused = RefusedHolding(holding=owner, grant=found.grant, reason=reason)
                return _Refusal(holding=refused, final=False)
            await self._reassign(found)
        return None

    def _with_whole_cards(self, owner: Holding, found: Reassigned) -> Verdict:
        """A refusal where the answer has no library and the container has a part of a card."""
        others = (
            share
            for each in found.grant.containers
            if each.name != owner.container
            for share in each.shares
        )
        if are_whole_cards((*found.after.shares, *others), self._state.cards):
            return found
        return RefusedHolding(holding=owner, grant=found.grant, reason=_WITHOUT_LIBRARY)

    async def _with_devices(
        self, mig: MigInstances, owner: Holding, found: Confirmed | Reassigned
    ) -> Verdict:
        """A refusal where the answer's MIG devices are gone or not what was granted.

        The answer names them, and they are of one size: limits can be rewritten, devices can't.
        Raises: Unavailable.
        """
        grant = self._state.book.of(owner.pod_uid)
        if isinstance(found, Confirmed):
            reason = await mig.missing(found.record)
        else:
            answered = record_of(owner, self._state.saved.records.values())
            same = answered is not None and answered.shares == found.after.shares
            reason = await mig.missing(found.after) if same else _OTHER_DEVICES
        return RefusedHolding(holding=owner, grant=grant, reason=reason) if reason else found

    async def _not_counted(self, change: Reassigned, holdings: Sequence[Holding]) -> str:
        """Why the ledger does not count the container on its cards; empty when it does.

        Raises: Unavailable.
        """
        if not change.moved:
            return ""
        ended = self._pods.seen().ended
        astray = others_astray(
            change,
            records=tuple(self._state.saved.records.values()),
            holdings=[holding for holding in holdings if holding.pod_uid not in ended],
            book=self._state.book,
        )
        cards = ", ".join(change.after.cards)
        try:
            partners, exchange = partners_of(change, astray), exchange_for(change, astray)
            refused = await self._moves.ask(change, partners, exchange)
        except Unavailable as exc:
            raise Unavailable(
                f"the container waits: the kubelet gave it {cards}, other than granted, and the "
                f"ledger can't be asked whether that has room: {exc}"
            ) from exc
        if not refused:
            if exchange is not None:
                # The next answer names a card by where the ledger has the others now.
                await refresh_book(self._state, self._source, self._pods)
            return ""
        return f"the kubelet gave it {cards}, other than granted: {refused}; {TRY_AGAIN}"

    async def _asked(
        self,
        unmanaged: UnmanagedPods,
        owner: Holding,
        holdings: Sequence[Holding],
        refused: RefusedHolding,
    ) -> Verdict:
        """The verdict after the scheduler was asked for a grant of what the pod was given."""
        if record_of(owner, self._state.saved.records.values()) is None:
            return refused
        try:
            reason = await unmanaged.ask(owner, holdings)
        except InvalidRequest as exc:
            raise Unavailable(str(exc)) from exc
        if reason:
            return replace(refused, reason=f"the scheduler gives it no grant: {reason}")
        # All at once: what has no answer of its own would wait for an Allocate that won't come.
        for holding in holdings:
            if holding.pod_uid == owner.pod_uid and holding.container != owner.container:
                other = self._decide(holding)
                if isinstance(other, Reassigned) and not other.moved:
                    await self._reassign(other)
        return self._decide(owner)

    def _decide(self, owner: Holding) -> Verdict:
        records = tuple(self._state.saved.records.values())
        return verdict(owner, records=records, book=self._state.book)

    async def _reassign(self, change: Reassigned) -> None:
        """Limits first: a kill in between leaves the old record, and the check is made again."""
        logger.warning(
            "answer belongs to another container, limits rewritten",
            extra={
                "pod_uid": change.after.pod_uid,
                "container": change.after.container,
                "cards": list(change.after.cards),
                "moved": change.moved,
            },
        )
        await asyncio.to_thread(self._write, change.after)

        def edit(saved: AgentState) -> AgentState:
            after = saved.with_records([change.after, *displaced(change, saved.records)])
            if is_complete(change.grant, after.records.values()):
                after = after.with_report(self._reports.allocated(change.grant, after))
            return after

        await self._state.change(edit)

    def _write(self, record: Record) -> None:
        self._files.write_limits(record)
        # The pod that the answer was meant for may have left by now, and its directories too.
        if record.cache_dir:
            self._files.keep_cache_dir(record.cache_dir, record.nonce)

    async def _refuse(self, refused: RefusedHolding) -> None:
        holding, grant = refused.holding, refused.grant
        logger.error(
            "container refused",
            extra={
                "pod_uid": holding.pod_uid,
                "container": holding.container,
                "reason": refused.reason,
            },
        )
        if grant is not None:
            report = self._reports.failed(grant, refused.reason)
            await self._state.change(lambda saved: saved.with_report(report))
        pod = self._pods.name_of(holding.pod_uid)
        if pod is None and holding.pod_name:
            pod = PodRef(
                uid=PodUid(holding.pod_uid), namespace=holding.namespace, name=holding.pod_name
            )
        if pod is not None:
            await self._pods.warn(pod, refused.reason)
        raise Conflict(f"container {holding.container} must not start: {refused.reason}")
