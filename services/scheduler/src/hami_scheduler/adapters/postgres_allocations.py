"""The ledger of grants in Postgres: reserve, change state, move, read.

Every method is one transaction: cards and quota (guarded), the allocation's row, its event with the
pod's next number, and the outbox row that announces it. What was announced goes on in
`hamicommon.db.outbox`; the counters go to the view of whoever called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hamicommon.db.database import Connection, ConstraintViolation, Database
from hamicommon.db.ledger import CardCounters, Change, Draft, QuotaAmounts, Step, demands
from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ContainerGrant,
)
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.events import event_subject

from hami_scheduler.adapters.postgres_cards import (
    give_cards,
    give_quota,
    lock_cards,
    take_cards,
    take_quota,
)
from hami_scheduler.adapters.postgres_rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    allocation_of,
)
from hami_scheduler.adapters.postgres_statements import (
    ADVANCE,
    DELETE_SHARES,
    INSERT_SHARES,
    RECORD_MOVE,
    RESERVE,
)

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]


class PostgresAllocationStore:
    """Ports AllocationStore and LedgerReader.

    `quota_of` says what an allocation's slices count in quotas (the vendors know);
    `on_commit` is called after each change, so that the outbox is looked at without delay.
    """

    def __init__(
        self, database: Database, *, quota_of: QuotaOf, on_commit: Callable[[], None]
    ) -> None:
        self._database = database
        self._quota_of = quota_of
        self._on_commit = on_commit

    async def reserve(self, draft: Draft) -> Change:
        """See the port."""
        try:
            async with self._database.transaction() as connection:
                change = await self._reserve(connection, draft)
        except ConstraintViolation as exc:
            raise Conflict(f"pod {draft.pod_uid} was reserved by somebody else: {exc}") from exc
        self._on_commit()
        return change

    async def _reserve(self, connection: Connection, draft: Draft) -> Change:
        wanted = demands(draft.placement.containers)
        given: tuple[CardCounters, ...] = ()
        if draft.replaces is not None:
            old = await self._lock(connection, draft.replaces)
            if old is None or old.state is not AllocationState.RESERVED:
                raise Conflict(f"allocation {draft.replaces} is no longer only reserved")
            both = {card.uuid for card in (*demands(old.containers), *wanted)}
            await lock_cards(connection, sorted(both))
            step = Step(
                allocation_id=old.id,
                sources=frozenset({AllocationState.RESERVED}),
                target=AllocationState.RELEASED,
                reason="replaced by a new reservation",
                actor=draft.actor,
            )
            given = (await self._apply(connection, old, step)).counters
        await take_quota(connection, draft.namespace, draft.quota)
        taken = await take_cards(connection, draft.placement.node, wanted, mutex=draft.mutex)
        row = await connection.fetchrow(RESERVE, *_reserve_arguments(draft, taken))
        allocation = Allocation(
            id=draft.allocation_id,
            pod_uid=draft.pod_uid,
            namespace=draft.namespace,
            pod_name=draft.pod_name,
            attempt=row["attempt"],
            node=draft.placement.node,
            state=AllocationState.RESERVED,
            containers=draft.placement.containers,
            reserved_at=row["reserved_at"],
            deadline=row["deadline"],
            traceparent=draft.traceparent,
        )
        return Change(
            allocation=allocation, sequence=row["sequence"], counters=_latest((*given, *taken))
        )

    async def advance(self, step: Step) -> Change | None:
        """See the port."""
        async with self._database.transaction() as connection:
            old = await self._lock(connection, step.allocation_id)
            if (
                old is None
                or old.state not in step.sources
                or (step.token is not None and old.token != step.token)
            ):
                return None
            change = await self._apply(connection, old, step)
        self._on_commit()
        return change

    async def _apply(self, connection: Connection, old: Allocation, step: Step) -> Change:
        counters: tuple[CardCounters, ...] = ()
        if step.target not in LIVE_STATES:
            await give_quota(connection, old.namespace, self._quota_of(old.containers))
            counters = await give_cards(connection, demands(old.containers))
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
            _payload(old, step.target, step.reason, counters),
        )
        return Change(
            allocation=allocation_of({**dict(row), **_parts(old)}),
            sequence=row["sequence"],
            counters=counters,
        )

    async def move(
        self, allocation_id: AllocationId, *, token: int, containers: Sequence[ContainerGrant]
    ) -> Change | None:
        """See the port."""
        async with self._database.transaction() as connection:
            old = await self._lock(connection, allocation_id)
            if old is None or old.token != token or not old.live:
                return None
            new = tuple(containers)
            held, wanted = demands(old.containers), demands(new)
            await lock_cards(connection, sorted({card.uuid for card in (*held, *wanted)}))
            given = await give_cards(connection, held)
            taken = await take_cards(connection, old.node, wanted, mutex=False)
            counters = _latest((*given, *taken))
            await connection.execute(DELETE_SHARES, allocation_id)
            await connection.execute(INSERT_SHARES, allocation_id, *_share_columns(new))
            reason = "moved to the cards that the kubelet gave"
            sequence = await connection.fetchval(
                RECORD_MOVE,
                old.id,
                old.state,
                reason,
                "node-agent",
                {"before": _cards(old.containers), "after": _cards(new)},
                event_subject("allocation", "moved"),
                _payload(old, old.state, reason, counters),
            )
            fresh = await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", old.id)
        self._on_commit()
        return Change(allocation=allocation_of(fresh), sequence=sequence, counters=counters)

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

    async def overdue(self) -> list[Allocation]:
        """See the port."""
        return await self._many(f"a.deadline < now() AND {LIVE_SQL}")

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


def _reserve_arguments(draft: Draft, taken: Sequence[CardCounters]) -> list[Any]:
    containers = draft.placement.containers
    payload = {
        "version": 1,
        "allocation_id": draft.allocation_id,
        "pod_uid": draft.pod_uid,
        "namespace": draft.namespace,
        "pod_name": draft.pod_name,
        "node": draft.placement.node,
        "state": AllocationState.RESERVED.value,
        "reason": "",
        "counters": [_counters(card) for card in taken],
    }
    return [
        draft.allocation_id,
        draft.pod_uid,
        draft.namespace,
        draft.pod_name,
        draft.placement.node,
        dict(draft.policy),
        draft.placement.score,
        draft.traceparent,
        draft.lease_s,
        [container.index for container in containers],
        [container.name for container in containers],
        [container.role for container in containers],
        *_share_columns(containers),
        draft.actor,
        event_subject("allocation", AllocationState.RESERVED.value),
        payload,
    ]


def _share_columns(containers: Sequence[ContainerGrant]) -> list[list[Any]]:
    rows = [
        (
            container.index,
            position,
            container.name,
            container.role,
            share.uuid,
            share.vendor,
            share.memory_mib,
            share.core_percent,
        )
        for container in containers
        for position, share in enumerate(container.shares)
    ]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 8


def _payload(
    old: Allocation, state: AllocationState, reason: str, counters: Sequence[CardCounters]
) -> dict[str, Any]:
    return {
        "version": 1,
        "allocation_id": old.id,
        "pod_uid": old.pod_uid,
        "namespace": old.namespace,
        "pod_name": old.pod_name,
        "node": old.node,
        "state": state.value,
        "reason": reason,
        "counters": [_counters(card) for card in counters],
    }


def _counters(card: CardCounters) -> dict[str, Any]:
    return {
        "node": card.node,
        "uuid": card.uuid,
        "used_slots": card.used_slots,
        "used_memory_mib": card.used_memory_mib,
        "used_core_percent": card.used_core_percent,
        "device_version": card.version,
    }


def _parts(old: Allocation) -> dict[str, Any]:
    """Containers and shares of `old` in the shape of a row (a change of state leaves them)."""
    return {
        "containers": [(c.index, c.name, c.role) for c in old.containers],
        "shares": [
            (c.index, s.uuid, s.vendor, s.memory_mib, s.core_percent)
            for c in old.containers
            for s in c.shares
        ],
    }


def _cards(containers: Sequence[ContainerGrant]) -> dict[str, list[str]]:
    return {c.name: [share.uuid for share in c.shares] for c in containers if c.shares}


def _latest(counters: Sequence[CardCounters]) -> tuple[CardCounters, ...]:
    """The newest state of each card, when one transaction changed it twice."""
    newest: dict[str, CardCounters] = {}
    for card in counters:
        if card.uuid not in newest or newest[card.uuid].version < card.version:
            newest[card.uuid] = card
    return tuple(newest.values())
