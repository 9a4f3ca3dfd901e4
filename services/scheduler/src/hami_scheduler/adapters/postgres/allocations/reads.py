"""Allocations as loops and answers read them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.adapters.postgres.rows import (
    LIVE_SQL,
    SELECT_ALLOCATION,
    SELECT_STANDING,
    SELECT_STANDING_OF,
    allocation_of,
)

# Some 3 ms of the event loop; tens of thousands at once would hold decisions up for a second.
STANDING_BATCH = 256


class PostgresLedgerReader:
    """Port LedgerReader, and what else is read of single pods."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """See the port."""
        return await self._one("a.id = $1", allocation_id)

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """See the port."""
        return await self._one(f"a.pod_uid = $1 AND {LIVE_SQL}", pod_uid)

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


async def locked(connection: Connection, allocation_id: AllocationId) -> Allocation | None:
    """The allocation, its row locked until the transaction ends."""
    row = await connection.fetchrow(
        f"{SELECT_ALLOCATION} WHERE a.id = $1 FOR UPDATE OF a", allocation_id
    )
    return None if row is None else allocation_of(row)
