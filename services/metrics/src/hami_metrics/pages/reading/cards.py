"""What is stored of nodes and cards: health, who held them, what the reconciler found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hamicommon.ledger.connection import Connection
from hamicommon.ledger.footprint import footprint

from hami_metrics.pages.domain.details import CardCounts, DriftRow, HealthEvent, HeldPeriod

PAGE_ROWS = 100
LANES = 200
"""Holders that a card's picture shows; a page of the table has the others."""

_HEALTH = """
SELECT at, node, device_uuid, healthy, reason FROM device_health_events
 WHERE device_uuid = ANY($1::text[]) AND at > $2::timestamptz - interval '30 days' AND at <= $2
 ORDER BY at DESC, id DESC LIMIT 200
"""
_DRIFT = """
SELECT at, "class" AS kind, subject, detail, repaired FROM drift_journal
 WHERE at > $2::timestamptz - interval '7 days' AND at <= $2
   AND (subject = $1 OR detail LIKE '%' || $3 || '%')
 ORDER BY at DESC, id DESC LIMIT 20
"""
_WHICH = """
SELECT uuid FROM devices WHERE node = $1 AND index = $2 ORDER BY present DESC, uuid LIMIT 1
"""
_WHERE = "SELECT node, index FROM devices WHERE uuid = $1"
# Narrowed to the card before the join: one card gave thousands of slices in a year.
_HELD = f"""
SELECT a.id::text AS allocation_id, a.pod_uid, a.namespace, a.pod_name, a.state, a.reason,
       a.reserved_at AS began_at, a.ended_at,
       {footprint("memory_mib")} AS memory_mib,
       {footprint("core_percent")} AS core_percent
  FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
 WHERE x.device_uuid = $1 AND a.reserved_at <= $2
   AND ($3::timestamptz IS NULL OR (a.reserved_at, a.id) < ($3, $4::uuid))
   AND (a.ended_at IS NULL OR a.ended_at > $5)
 GROUP BY a.id ORDER BY a.reserved_at DESC, a.id DESC LIMIT {LANES + 1}
"""
_HOLDERS_30_DAYS = """
SELECT count(DISTINCT a.pod_uid)
  FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
 WHERE x.device_uuid = $1 AND a.reserved_at <= $2
   AND (a.ended_at IS NULL OR a.ended_at > $2::timestamptz - interval '30 days')
"""
_INCIDENTS = """
SELECT count(DISTINCT s.sick_at) AS incidents,
       count(DISTINCT a.pod_uid) FILTER (
           WHERE hami_held(a.reserved_at, a.ended_at) && s.sick) AS hit
  FROM (SELECT sick_at, sick FROM v_sick_cards
         WHERE device_uuid = $1 AND sick_at <= $2
           AND (well_at IS NULL OR well_at > $2::timestamptz - interval '30 days')) s
  LEFT JOIN (allocation_devices x JOIN allocations a ON a.id = x.allocation_id
         AND (a.ended_at IS NULL OR a.ended_at > $2::timestamptz - interval '30 days'))
    ON x.device_uuid = $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPage:
    """Some holders of a card, the newest first; `after`: where the next page begins."""

    periods: tuple[HeldPeriod, ...]
    after: tuple[datetime, str] | None


async def read_health(connection: Connection, uuids: list[str], at: datetime) -> list[HealthEvent]:
    """Of 30 days before that moment, the newest first."""
    return [HealthEvent(**row) for row in await connection.fetch(_HEALTH, uuids, at)]


async def read_drift(connection: Connection, node: str, at: datetime) -> list[DriftRow]:
    """What names the node, of seven days."""
    pattern = node.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    return [DriftRow(**row) for row in await connection.fetch(_DRIFT, node, at, pattern)]


async def find_card(connection: Connection, node: str, index: int) -> str | None:
    """Its uuid."""
    found: str | None = await connection.fetchval(_WHICH, node, index)
    return found


async def node_of_card(connection: Connection, uuid: str) -> tuple[str, int] | None:
    """Node and index of a card that the ledger knows or knew."""
    row = await connection.fetchrow(_WHERE, uuid)
    return None if row is None else (row["node"], row["index"])


async def read_held(
    connection: Connection,
    uuid: str,
    *,
    at: datetime,
    since: datetime,
    after: tuple[datetime, str] | None = None,
    most: int = PAGE_ROWS,
) -> HeldPage:
    """Who held the card in that span; keyset pages on (began, allocation)."""
    begin, last = after or (None, None)
    rows = await connection.fetch(_HELD, uuid, at, begin, last, since)
    periods = tuple(HeldPeriod(**row) for row in rows[:most])
    more = len(rows) > most
    return HeldPage(
        periods=periods,
        after=(periods[-1].began_at, periods[-1].allocation_id) if more else None,
    )


async def read_counts(connection: Connection, uuid: str, at: datetime) -> CardCounts:
    """Of the 30 days before that moment."""
    holders = await connection.fetchval(_HOLDERS_30_DAYS, uuid, at)
    row = await connection.fetchrow(_INCIDENTS, uuid, at)
    return CardCounts(holders=holders, incidents=row["incidents"], hit=row["hit"])
