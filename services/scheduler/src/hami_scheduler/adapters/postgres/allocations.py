"""The ledger of grants in Postgres: reserve, change state, move, read.

Every method is one transaction: cards and quota (guarded), the allocation's row, its event with the
pod's next number, and the outbox row that announces it. What was announced goes on in
`hamicommon.ledger.outbox`; the counters go to the view of the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.events import event_subject
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import (
    BindingClaim,
    CardCounters,
    Change,
    Draft,
    Entry,
    Move,
    QuotaAmounts,
    ReservationWrite,
    Rules,
    StateStep,
    demands,
    is_plain,
    wanted_by,
)

from hami_scheduler.adapters.postgres.cards import (
    Swap,
    check_seen,
    exchange_cards,
    give_cards,
    give_quota,
    lock_cards,
    take_cards,
    take_columns,
    take_quota,
)
from hami_scheduler.adapters.postgres.encoding import (
    batch_arguments,
    card_names,
    event_payload,
    latest_counters,
    parts_of,
    reserve_arguments,
    reserved_change,
    share_columns,
    way_columns,
    ways_of,
)
from hami_scheduler.adapters.postgres.entering import enter
from hami_scheduler.adapters.postgres.rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    SELECT_STANDING,
    SELECT_STANDING_OF,
    allocation_of,
    counters_of,
)
from hami_scheduler.adapters.postgres.statements import (
    ADVANCE,
    ADVANCE_ALL,
    ADVANCE_LIVE,
    ANNOTATE,
    CLAIM_ALL,
    DELETE_SHARES,
    INSERT_SHARES,
    RECORD_MOVE,
    RESERVE,
    RESERVE_ALL,
    RESERVE_ONE,
)

logger = logging.getLogger(__name__)

# Some 3 ms of the event loop; tens of thousands at once would hold decisions up for a second.
STANDING_BATCH = 256

MOST_ALONE = 4
"""Reservations of a batch that are written by themselves at once; each holds a connection."""

_ANY_STEP = event_subject("allocation", "")

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]


class PostgresAllocationStore:
    """Ports AllocationStore and LedgerReader.

    `quota_of` returns what an allocation's slices count in quotas, `rules` which rules of the loop
    the vendors of its cards have; `on_commit` is called after each change, so that the outbox is
    looked at without delay.
    """

    def __init__(
        self,
        database: Database,
        *,
        quota_of: QuotaOf,
        rules: Rules = MappingProxyType({}),
        on_commit: Callable[[], None],
    ) -> None:
        self._database = database
        self._quota_of = quota_of
        self._rules = rules
        self._on_commit = on_commit

    async def reserve(self, draft: Draft) -> Change:
        """See the port."""
        try:
            change = await self._reserve_one(draft)
            if change is None:
                async with self._database.transaction() as connection:
                    change = await self._reserve(connection, draft)
        except ConstraintViolation as exc:
            raise Conflict(f"pod {draft.pod_uid} was reserved by somebody else: {exc}") from exc
        self._on_commit()
        return change

    async def _reserve_one(self, draft: Draft) -> Change | None:
        """The short way; None when it does not apply, or did not succeed."""
        wanted = wanted_by(draft, self._rules)
        if draft.replaces is not None or len(wanted) != 1:
            return None
        [card] = wanted
        row = await self._database.fetchrow(
            RESERVE_ONE,
            *reserve_arguments(draft, ()),
            sorted(draft.quota),
            card.uuid,
            *take_columns(draft.allocation_id, card, draft.mutex),
        )
        return None if row is None else reserved_change(draft, row, (counters_of(row),))

    async def _reserve(self, connection: Connection, draft: Draft) -> Change:
        wanted = wanted_by(draft, self._rules)
        given: tuple[CardCounters, ...] = ()
        if draft.replaces is not None:
            old = await self._lock(connection, draft.replaces)
            if old is None or old.state is not AllocationState.RESERVED:
                raise Conflict(f"allocation {draft.replaces} is no longer only reserved")
            both = {card.uuid for card in (*demands(old.containers), *wanted)}
            wanted = check_seen(await lock_cards(connection, sorted(both)), wanted)
            step = StateStep(
                allocation_id=old.id,
                sources=frozenset({AllocationState.RESERVED}),
                target=AllocationState.RELEASED,
                reason="replaced by a new reservation",
                actor=draft.actor,
            )
            given = (await self._apply(connection, old, step)).counters
        await take_quota(connection, draft.namespace, draft.quota)
        taken = await take_cards(
            connection, draft.allocation_id, draft.placement.node, wanted, mutex=draft.mutex
        )
        row = await connection.fetchrow(RESERVE, *reserve_arguments(draft, taken))
        return reserved_change(draft, row, latest_counters((*given, *taken)))

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> list[Change | HamiError]:
        """See the port."""
        together = [write for write in writes if is_plain(write.draft, self._rules)]
        rows = await self._reserved_together(together) if together else {}
        if rows:
            self._on_commit()
        gate = asyncio.Semaphore(MOST_ALONE)
        turns: defaultdict[GpuUuid, asyncio.Lock] = defaultdict(asyncio.Lock)
        return await asyncio.gather(
            *(
                self._reserved(write.draft, rows.get(write.draft.allocation_id), gate, turns)
                for write in writes
            )
        )

    async def _reserved_together(self, writes: Sequence[ReservationWrite]) -> dict[str, Any]:
        """Rows of RESERVE_ALL by id. Raises: Unavailable."""
        arguments = batch_arguments(writes, self._rules)
        try:
            rows = await self._database.fetch(RESERVE_ALL, *arguments, _ANY_STEP)
        except (Conflict, ConstraintViolation) as exc:
            # One of these pods has a grant already; each is written by itself.
            logger.info("not reserved together", extra={"error": str(exc)})
            return {}
        return {row["id"]: row for row in rows}

    async def _reserved(
        self,
        draft: Draft,
        row: Any,
        gate: asyncio.Semaphore,
        turns: Mapping[GpuUuid, asyncio.Lock],
    ) -> Change | HamiError:
        """What a card has goes to those that came first, also where each is written by itself."""
        if row is None:
            async with AsyncExitStack() as stack:
                for card in wanted_by(draft, self._rules):
                    await stack.enter_async_context(turns[card.uuid])
                await stack.enter_async_context(gate)
                try:
                    return await self.reserve(draft)
                except (Conflict, Unavailable) as exc:
                    return exc
        state = AllocationState(row["state"])
        return reserved_change(draft, row, (counters_of(row),), state=state, token=row["token"])

    async def enter(self, entry: Entry) -> Change:
        """See the port."""
        try:
            async with self._database.transaction() as connection:
                change = await enter(connection, entry, self._rules)
        except ConstraintViolation as exc:
            uid = entry.draft.pod_uid
            raise Conflict(f"pod {uid} has a grant by somebody else: {exc}") from exc
        self._on_commit()
        return change

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        if len(step.sources) == 1 and step.target in LIVE_STATES:
            try:
                return await self._advance_live(step)
            except ConstraintViolation:
                # An event of the pod came in between, without a change of state: wait for its turn.
                logger.info("step tried again", extra={"allocation_id": step.allocation_id})
        async with self._database.transaction() as connection:
            old = await self._lock(connection, step.allocation_id)
            if (
                old is None
                or old.state not in step.sources
                or (step.token is not None and old.token != step.token)
                or (step.node is not None and old.node != step.node)
            ):
                return None
            change = await self._apply(connection, old, step)
        self._on_commit()
        return change

    async def _advance_live(self, step: StateStep) -> Change | None:
        """The short way."""
        [source] = step.sources
        row = await self._database.fetchrow(
            ADVANCE_LIVE,
            step.allocation_id,
            source,
            step.target,
            step.reason,
            step.new_token,
            step.lease_s,
            step.token,
            step.actor,
            event_subject("allocation", step.target),
            step.node,
        )
        if row is None:
            return None
        self._on_commit()
        return Change(allocation=allocation_of(row), sequence=row["sequence"])

    async def advance_all(self, steps: Sequence[StateStep]) -> list[bool]:
        """See the port."""
        if len(steps) == 1:
            return [await self.advance(steps[0]) is not None]
        ways = ways_of(steps)
        try:
            rows = await self._database.fetch(ADVANCE_ALL, *way_columns(ways), _ANY_STEP)
        except (Conflict, ConstraintViolation) as exc:
            logger.info("steps tried one by one", extra={"count": len(steps), "error": str(exc)})
            rows = []
        if rows:
            self._on_commit()
        made = {row["id"] for row in rows}
        done = {id(step) for way in ways if way[0].allocation_id in made for step in way}
        return [id(step) in done or await self._advanced(step) for step in steps]

    async def _advanced(self, step: StateStep) -> bool:
        try:
            return await self.advance(step) is not None
        except Conflict as exc:
            logger.info("step not made", extra={"error": str(exc)})
            return False

    async def claim_all(self, claims: Sequence[BindingClaim]) -> list[Allocation | None]:
        """See the port."""
        columns = [(c.pod_uid, c.node, c.actor, c.lease_s) for c in claims]
        subject = event_subject("allocation", AllocationState.BINDING)
        arrays = map(list, zip(*columns, strict=True))
        try:
            rows = await self._database.fetch(CLAIM_ALL, *arrays, subject)
        except (Conflict, ConstraintViolation) as exc:
            # Something else happened to one of these pods; each is looked at by itself.
            logger.info("claims not made together", extra={"error": str(exc)})
            return [None] * len(claims)
        if rows:
            self._on_commit()
        found = {row["pod_uid"]: allocation_of(row) for row in rows}
        return [found.get(claim.pod_uid) for claim in claims]

    async def _apply(self, connection: Connection, old: Allocation, step: StateStep) -> Change:
        counters: tuple[CardCounters, ...] = ()
        if step.target not in LIVE_STATES:
            await give_quota(connection, old.namespace, self._quota_of(old.containers))
            counters = await give_cards(connection, old.id, demands(old.containers))
        row = await connection.fetchrow(
            ADVANCE,
            old.id,
            old.state,
            step.target,
            step.reason,
            step.new_token,
            step.lease_s,
            step.target in LIVE_STATES,
            step.actor,
            event_subject("allocation", step.target),
            event_payload(old, step.target, step.reason, counters),
        )
        return Change(
            allocation=allocation_of({**dict(row), **parts_of(old)}),
            sequence=row["sequence"],
            counters=counters,
        )

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """See the port."""
        async with self._database.transaction() as connection:
            swaps: list[Swap] = []
            for move in sorted(moves, key=lambda move: move.allocation_id):
                old = await self._lock(connection, move.allocation_id)
                if old is None or old.token != move.token or not old.live:
                    return None
                swaps.append(Swap.of(old, move, self._rules))
            counters = await exchange_cards(connection, swaps)
            changes = [await self._moved(connection, swap, counters) for swap in swaps]
        self._on_commit()
        return tuple(changes)

    async def _moved(
        self, connection: Connection, swap: Swap, counters: Mapping[GpuUuid, CardCounters]
    ) -> Change:
        old, new = swap.old, swap.containers
        touched = tuple(counters[uuid] for uuid in swap.cards)
        await connection.execute(DELETE_SHARES, old.id)
        await connection.execute(INSERT_SHARES, old.id, *share_columns(new))
        reason = "moved to the cards that the kubelet gave"
        sequence = await connection.fetchval(
            RECORD_MOVE,
            old.id,
            old.state,
            reason,
            "node-agent",
            {"before": card_names(old.containers), "after": card_names(new)},
            event_subject("allocation", "moved"),
            event_payload(old, old.state, reason, touched),
        )
        fresh = await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", old.id)
        return Change(allocation=allocation_of(fresh), sequence=sequence, counters=touched)

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """See the port."""
        row = await self._database.fetchrow(ANNOTATE, allocation_id, token, dict(annotations))
        return row is not None

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """See the port."""
        return await self._one("a.id = $1", allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return await self._one(f"a.pod_uid = $1 AND {LIVE_SQL}", pod_uid)

    async def latest_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return await self._one("a.pod_uid = $1 ORDER BY a.attempt DESC LIMIT 1", pod_uid)

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """See the port."""
        where = f"{LIVE_SQL} AND ($1::text IS NULL OR a.node = $1)"
        return await self._many(where, node)

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        """See the port."""
        after = ""
        while rows := await self._database.fetch(SELECT_STANDING, after, STANDING_BATCH):
            yield [allocation_of(row) for row in rows]
            after = rows[-1]["pod_uid"]

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> list[Allocation]:
        """See the port."""
        rows = await self._database.fetch(SELECT_STANDING_OF, list(pod_uids))
        return [allocation_of(row) for row in rows]

    async def whole(self, ids: Sequence[AllocationId]) -> list[Allocation]:
        """See the port."""
        return await self._many("a.id = ANY($1::uuid[])", list(ids))

    async def overdue(self) -> list[Allocation]:
        """See the port."""
        return await self._many(f"a.deadline < now() AND {LIVE_SQL}")

    async def late(self, after_s: float) -> list[Allocation]:
        """See the port."""
        return await self._many(
            "a.state = 'bound' AND a.bound_at < now() - make_interval(secs => $1)", after_s
        )

    async def _one(self, where: str, *args: object) -> Allocation | None:
        row = await self._database.fetchrow(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return None if row is None else allocation_of(row)

    async def _many(self, where: str, *args: object) -> list[Allocation]:
        rows = await self._database.fetch(f"{SELECT_ALLOCATION} WHERE {where}", *args)
        return [allocation_of(row) for row in rows]

    async def _lock(self, connection: Connection, allocation_id: AllocationId) -> Allocation | None:
        row = await connection.fetchrow(
            f"{SELECT_ALLOCATION} WHERE a.id = $1 FOR UPDATE OF a", allocation_id
        )
        return None if row is None else allocation_of(row)
