"""Small writes of the loops in Postgres: the drift journal and node leases."""

from __future__ import annotations

from hamicommon.clipping import clip
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import LockHolder

_DRIFT = 'INSERT INTO drift_journal ("class", subject, detail, repaired) VALUES ($1, $2, $3, $4)'
MOST_OF_A_SUBJECT = 512
MOST_OF_A_DETAIL = 4096
"""Characters: tenants choose annotations and names, and the journal is kept for months."""
_LEASE_TAKE = """
INSERT INTO node_leases AS l (node, token, pod_uid, allocation_id, expires_at)
VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))
ON CONFLICT (node) DO UPDATE SET token = excluded.token, pod_uid = excluded.pod_uid,
       allocation_id = excluded.allocation_id, expires_at = excluded.expires_at
 WHERE l.expires_at < now() OR l.allocation_id = excluded.allocation_id
RETURNING token
"""
_LEASE_FREE = "DELETE FROM node_leases WHERE node = $1 AND token = $2 RETURNING node"
_LEASE_HOLDER = """
SELECT token, pod_uid, allocation_id::text AS allocation_id FROM node_leases
 WHERE node = $1 AND expires_at >= now()
"""


class PostgresJournal:
    """Where the reconciler writes what it found."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Appends one line, clipped. Raises: Unavailable."""
        subject, detail = clip(subject, MOST_OF_A_SUBJECT), clip(detail, MOST_OF_A_DETAIL)
        await self._database.fetch(_DRIFT, kind, subject, detail, repaired)


class PostgresNodeLease:
    """The node lock while Redis is away: one row per node (`attempt` never waits)."""

    def __init__(self, database: Database, *, lock_s: float) -> None:
        self._database = database
        self._lock_s = lock_s

    async def attempt(self, node: NodeName, holder: LockHolder) -> bool:
        """Takes the lease if it is free, past its end, or of the same allocation."""
        try:
            row = await self._database.fetchrow(
                _LEASE_TAKE,
                node,
                holder.token,
                holder.pod_uid,
                holder.allocation_id,
                self._lock_s,
            )
        except Conflict:
            return False
        return row is not None

    async def release(self, node: NodeName, token: int) -> bool:
        """Deletes the lease if `token` has it."""
        return await self._database.fetchrow(_LEASE_FREE, node, token) is not None

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Who has it."""
        row = await self._database.fetchrow(_LEASE_HOLDER, node)
        if row is None:
            return None
        return LockHolder(
            pod_uid=PodUid(row["pod_uid"]),
            allocation_id=AllocationId(row["allocation_id"]),
            token=row["token"],
        )
