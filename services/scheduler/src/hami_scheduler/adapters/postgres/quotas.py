"""Quotas of namespaces in Postgres: limits of ResourceQuotas, and use by the ledger's grants."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.errors import Conflict
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import QuotaAmounts, QuotaUse

from hami_scheduler.adapters.postgres.rows import LIVE_SQL, SELECT_ALLOCATION, allocation_of

_LIMIT = """
INSERT INTO quotas (namespace, resource, limit_amount) VALUES ($1, $2, $3)
ON CONFLICT (namespace, resource) DO UPDATE SET limit_amount = excluded.limit_amount,
       updated_at = now()
 WHERE quotas.limit_amount IS DISTINCT FROM excluded.limit_amount
"""
# The server's time-outs end our transactions sooner.
MAX_WAIT_S = 10.0
POLL_INTERVAL_S = 0.01
# Nothing more fits into a new quota until its use has been counted.
_NEW = """
INSERT INTO quotas (namespace, resource, limit_amount, used_amount)
SELECT $1, w.resource, w.amount, greatest(w.amount, 0)
  FROM unnest($2::text[], $3::bigint[]) AS w (resource, amount)
ON CONFLICT (namespace, resource) DO NOTHING
RETURNING resource
"""
# Transactions that write grants, or that have looked for quotas to do so.
_WRITERS = """
SELECT DISTINCT virtualtransaction FROM pg_locks
 WHERE granted AND pid <> pg_backend_pid()
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (relation = 'allocations'::regclass AND mode = 'RowExclusiveLock'
        OR relation = 'quotas'::regclass AND mode = 'RowShareLock')
"""
_UNLIMIT = """
UPDATE quotas SET limit_amount = NULL, updated_at = now()
 WHERE namespace = $1 AND resource <> ALL($2::text[]) AND limit_amount IS NOT NULL
"""
_LOCK = "SELECT resource FROM quotas WHERE namespace = $1 ORDER BY resource FOR UPDATE"
_USED = """
SELECT namespace, resource, limit_amount, used_amount FROM quotas WHERE limit_amount IS NOT NULL
"""
_COUNT = """
UPDATE quotas SET used_amount = $3, updated_at = now()
 WHERE namespace = $1 AND resource = $2 AND used_amount <> $3
"""


@dataclass(eq=False)
class PostgresQuotas:
    """Store of quotas."""

    database: Database
    quota_of: Callable[[Sequence[ContainerGrant]], QuotaAmounts]
    _uncounted: set[str] = field(default_factory=set, init=False)
    """Namespaces with a new quota whose use is still to be counted."""

    async def list_uses(self) -> list[QuotaUse]:
        """Return every limit with its use. Raises: Unavailable."""
        rows = await self.database.fetch(_USED)
        return [QuotaUse(*row) for row in rows]

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """Set exactly these limits, and count their use. Raises: Conflict, Unavailable."""
        names = sorted(limits)
        amounts = [limits[name] for name in names]
        if await self.database.fetch(_NEW, namespace, names, amounts):
            self._uncounted.add(namespace)
        if namespace in self._uncounted:
            await self._wait_for_writers()
        async with self.database.transaction() as connection:
            await connection.execute(_UNLIMIT, namespace, sorted(limits))
            await connection.executemany(
                _LIMIT, [(namespace, name, limits[name]) for name in sorted(limits)]
            )
            # From here on reservations of the namespace wait, so the sum is the truth.
            rows = await connection.fetch(_LOCK, namespace)
            live = await connection.fetch(
                f"{SELECT_ALLOCATION} WHERE a.namespace = $1 AND {LIVE_SQL}", namespace
            )
            used: Counter[str] = Counter()
            for row in live:
                used.update(self.quota_of(allocation_of(row).containers))
            await connection.executemany(
                _COUNT, [(namespace, row["resource"], used[row["resource"]]) for row in rows]
            )
        self._uncounted.discard(namespace)

    async def _wait_for_writers(self) -> None:
        """Wait for transactions that may not have seen the quota. Raises: Conflict, Unavailable.

        Those that begin later see it, and are counted or refused.
        """
        deadline = time.monotonic() + MAX_WAIT_S
        older = await self._writers()
        while older:
            if time.monotonic() > deadline:
                raise Conflict(
                    f"{len(older)} transactions that began before the quota are still running, "
                    "so its usage can't be counted; retrying"
                )
            await asyncio.sleep(POLL_INTERVAL_S)
            older &= await self._writers()

    async def _writers(self) -> set[str]:
        return {row["virtualtransaction"] for row in await self.database.fetch(_WRITERS)}
