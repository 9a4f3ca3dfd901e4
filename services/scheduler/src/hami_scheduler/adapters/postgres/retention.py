"""Old history leaves Postgres in small batches; each is a transaction of its own.

Grants go by `hami_forget_grants` (migration 0017), which alone may remove events. The rest is this
service's to delete. No batch waits for a lock longer than `LOCK_TIMEOUT`: the next round does it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hamicommon.ledger.database import Database

LOCK_TIMEOUT = "200ms"
BATCH = 500
"""Pods or rows of a transaction; half a second of work on a slow disk."""

_FORGET = "SELECT hami_forget_grants($1, $2)"
_DRIFT = """
WITH gone AS (
    DELETE FROM drift_journal
     WHERE id IN (SELECT id FROM drift_journal WHERE at < $1 ORDER BY at LIMIT $2) RETURNING id)
SELECT count(*) FROM gone
"""
# The newest event of a card stays: it says how the card is.
_HEALTH = """
WITH gone AS (
    DELETE FROM device_health_events
     WHERE id IN (SELECT e.id FROM device_health_events e
                   WHERE e.at < $1
                     AND EXISTS (SELECT FROM device_health_events later
                                  WHERE later.device_uuid = e.device_uuid
                                    AND (later.at, later.id) > (e.at, e.id))
                   LIMIT $2) RETURNING id)
SELECT count(*) FROM gone
"""
# A card that any grant names stays as long as the grant.
_OLD_CARDS = """
SELECT uuid FROM devices d
 WHERE NOT present AND updated_at < $1 AND used_slots = 0 AND used_memory_mib = 0
   AND used_core_percent = 0 AND holdings = '{}'::jsonb
   AND NOT EXISTS (SELECT FROM allocation_devices x WHERE x.device_uuid = d.uuid)
 ORDER BY uuid LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_THEIR_HEALTH = "DELETE FROM device_health_events WHERE device_uuid = ANY ($1)"
_CARDS = "DELETE FROM devices WHERE uuid = ANY ($1)"


class PostgresRetention:
    """Port Retention."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget_grants(self, *, keep_days: int) -> int:
        """See the port."""
        return await self._removed(_FORGET, keep_days)

    async def forget_drift(self, *, keep_days: int) -> int:
        """See the port."""
        return await self._removed(_DRIFT, keep_days)

    async def forget_health(self, *, keep_days: int) -> int:
        """See the port."""
        return await self._removed(_HEALTH, keep_days)

    async def forget_cards(self, *, keep_days: int) -> int:
        """See the port."""
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            rows = await connection.fetch(_OLD_CARDS, _before(keep_days), BATCH)
            uuids = [row["uuid"] for row in rows]
            await connection.execute(_THEIR_HEALTH, uuids)
            await connection.execute(_CARDS, uuids)
        return len(uuids)

    async def _removed(self, statement: str, keep_days: int) -> int:
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            return int(await connection.fetchval(statement, _before(keep_days), BATCH))


def _before(keep_days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=keep_days)
