"""Read the ledger for all pages, with bounds on time and rows of each statement.

Pages have a few connections of their own: what people look at never takes one from the reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg
from hamicommon.errors import Unavailable
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database, translate_errors
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.questions import answer

from hami_metrics.pages.cluster import CardHolder, MeasuredUse, PageCard, PageCluster, PageNode, Row

STATEMENT_TIMEOUT_MS = 2000
"""Time limit of a statement of the pages."""
MAX_CARDS = 100_000
"""Maximum number of cards, ten times that of the largest known clusters."""
MAX_RECENT = 60
"""Maximum number of recent changes read; a placed pod has four, of which one is shown."""
SCHEDULER = "hami-scheduler"
"""Application name of the scheduler's connections."""
BUCKET_S = 300
SUMMED_BUCKETS = 4
"""Number of buckets read for present use: the current one, and fifteen minutes before it."""
MIB = 1024 * 1024


class PagesLedger:
    """Connections of the pages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield a connection for named questions, which limit themselves. Raises: Unavailable."""
        async with self._database.connection() as connection:
            yield connection

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Connection]:
        """Yield a connection for one consistent reading.

        Raises: Unavailable while Postgres is unavailable, or when a statement takes too long.
        """
        async with self._database.connection() as connection:
            # Inside, so that a time-out has its own sentence.
            with translate_errors():
                try:
                    async with connection.transaction(isolation="repeatable_read", readonly=True):
                        await connection.execute(
                            f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"
                        )
                        yield connection
                except asyncpg.QueryCanceledError as exc:
                    raise Unavailable(
                        f"the ledger took more than {STATEMENT_TIMEOUT_MS / 1000:g} s to "
                        "read for this page; try again"
                    ) from exc


_NODES = """
SELECT name, source, inventory_at, coalesce(node_group, '') AS node_group FROM nodes
 WHERE gone_at IS NULL AND ($1::text[] IS NULL OR name = ANY($1)) ORDER BY name
"""
_CARDS = f"""
SELECT d.uuid, d.node, d.index, d.type, d.slots, d.memory_mib, d.core_percent, d.used_slots,
       d.used_memory_mib, d.used_core_percent, d.healthy, d.health_reason,
       d.cordoned OR n.unschedulable AS cordoned
  FROM devices d JOIN nodes n ON n.name = d.node
 WHERE d.present AND ($1::text[] IS NULL OR d.node = ANY($1))
   AND ($2::text[] IS NULL OR d.uuid = ANY($2))
 ORDER BY d.node, d.index, d.uuid LIMIT {MAX_CARDS}
"""
_HOLDER_COLUMNS = f"""
       x.device_uuid, a.pod_uid, a.namespace, a.pod_name, a.state, a.reserved_at AS since,
       {footprint("memory_mib")} AS memory_mib,
       {footprint("core_percent")} AS core_percent
"""
_HOLDERS = f"""
SELECT {_HOLDER_COLUMNS}
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
 WHERE a.ended_at IS NULL AND ($1::text[] IS NULL OR a.node = ANY($1))
   AND ($2::text[] IS NULL OR x.device_uuid = ANY($2))
 GROUP BY a.id, x.device_uuid
"""
_HOLDERS_AT = f"""
SELECT {_HOLDER_COLUMNS}
  FROM (SELECT * FROM allocations WHERE ended_at IS NULL AND reserved_at <= $1
         UNION ALL
        SELECT * FROM allocations
         WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) @> $1) a
  JOIN allocation_devices x ON x.allocation_id = a.id
 GROUP BY a.id, a.pod_uid, a.namespace, a.pod_name, a.state, a.reserved_at, x.device_uuid
"""
# Of a card whose periods begin later, but that was so before, the first one.
_CARDS_AT = f"""
SELECT p.device_uuid AS uuid, p.node, coalesce(d.index, 0) AS index, p.type, p.slots, p.memory_mib,
       p.core_percent, p.healthy, p.health_reason, p.cordoned
  FROM device_periods p LEFT JOIN devices d ON d.uuid = p.device_uuid
 WHERE p.present AND (p.began_at <= $1 OR NOT p.since_known)
   AND (p.ended_at IS NULL OR p.ended_at > $1)
 ORDER BY p.node, 3, p.device_uuid LIMIT {MAX_CARDS}
"""
_MARKS = """
SELECT node, uuid, updated_at AS at, 0::bigint AS event FROM devices WHERE updated_at > $1
 UNION ALL
SELECT a.node, x.device_uuid, e.at, e.id
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
  JOIN allocation_devices x ON x.allocation_id = e.allocation_id
 WHERE e.id > $2
"""
# Racks of the past are not kept: a node stands where it stands now.
_GROUPS = "SELECT name, node_group FROM nodes WHERE node_group IS NOT NULL"


class ChangeMark(NamedTuple):
    """Change of a card, or of a grant on it, by which known changes are recognised."""

    node: str
    uuid: str
    at: datetime
    event: int
    """Number of the grant's event; 0: the card itself changed."""


async def read_nodes(
    connection: Connection, names: Collection[str] | None = None
) -> dict[str, PageNode]:
    """Read these nodes (None: all) with their cards; deleted ones are left out."""
    chosen = None if names is None else sorted(names)
    by_node: dict[str, list[PageCard]] = defaultdict(list)
    for card in await _read_cards(connection, chosen, None):
        by_node[card.node].append(card)
    rows = await connection.fetch(_NODES, chosen)
    return {row["name"]: _node(row, tuple(by_node.get(row["name"], ()))) for row in rows}


async def read_bare_nodes(connection: Connection) -> dict[str, PageNode]:
    """Read all nodes without their cards: last report, and group."""
    return {row["name"]: _node(row, ()) for row in await connection.fetch(_NODES, None)}


async def read_marks(connection: Connection, since: datetime, event: int) -> frozenset[ChangeMark]:
    """Read the writes of cards after `since`, and of grants after the event number `event`."""
    return frozenset(ChangeMark(*row) for row in await connection.fetch(_MARKS, since, event))


async def read_cards(connection: Connection, marks: Collection[ChangeMark]) -> list[PageCard]:
    """Read the cards of these changes; those that are gone are left out."""
    if not marks:
        return []
    names = sorted({mark.node for mark in marks})
    return await _read_cards(connection, names, sorted({mark.uuid for mark in marks}))


async def _read_cards(
    connection: Connection, names: Sequence[str] | None, uuids: Sequence[str] | None
) -> list[PageCard]:
    # The node of a grant's event is the grant's: a card of that uuid may stand in another by now.
    rows = await connection.fetch(_CARDS, names if uuids is None else None, uuids)
    holders = _by_card(await connection.fetch(_HOLDERS, names, uuids))
    return [PageCard(**row, holders=holders.get(row["uuid"], ())) for row in rows]


def _node(row: Row, cards: tuple[PageCard, ...]) -> PageNode:
    return PageNode(
        name=row["name"],
        source=row["source"],
        heard_at=row["inventory_at"],
        cards=cards,
        group=row["node_group"],
    )


def _by_card(rows: Iterable[Any]) -> dict[str, tuple[CardHolder, ...]]:
    found: dict[str, list[CardHolder]] = defaultdict(list)
    for uuid, pod_uid, namespace, pod_name, state, since, memory_mib, core_percent in rows:
        found[uuid].append(
            CardHolder(
                pod_uid=pod_uid,
                namespace=namespace,
                pod_name=pod_name,
                memory_mib=memory_mib,
                core_percent=core_percent,
                state=state,
                since=since,
            )
        )
    return {
        uuid: tuple(
            sorted(
                held, key=lambda one: (-one.memory_mib, one.namespace, one.pod_name, one.pod_uid)
            )
        )
        for uuid, held in found.items()
    }


async def read_state_at(ledger: PagesLedger, at: datetime) -> PageCluster:
    """Read the cluster as of a moment; granted amounts are summed from the holders."""
    async with ledger.look() as connection:
        holders = _by_card(await connection.fetch(_HOLDERS_AT, at))
        by_node: dict[str, list[PageCard]] = defaultdict(list)
        for row in await connection.fetch(_CARDS_AT, at):
            here = holders.get(row["uuid"], ())
            by_node[row["node"]].append(
                PageCard(
                    **row,
                    used_slots=len(here),
                    used_memory_mib=sum(one.memory_mib for one in here),
                    used_core_percent=sum(one.core_percent for one in here),
                    holders=here,
                )
            )
        groups = dict(await connection.fetch(_GROUPS))
        use = await read_use(connection, sorted(by_node), at, summed=True)
        recent, _ = await read_recent(connection, at)
    async with ledger.connection() as connection:
        waiting, reasons = await read_waiting(connection, at)
    return PageCluster(
        version=0,
        taken_at=at,
        nodes={
            name: PageNode(
                name=name,
                source="agent",
                heard_at=at,
                cards=tuple(cards),
                group=groups.get(name, ""),
            )
            for name, cards in by_node.items()
        },
        use=card_use(use),
        waiting=waiting,
        waiting_by_reason=reasons,
        recent=recent,
        past=True,
    )


_EVENTS = f"""
SELECT e.id, e.at, e.pod_uid, a.namespace, a.pod_name, a.node, e.state, e.reason
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 ORDER BY e.id DESC LIMIT {MAX_RECENT}
"""
_EVENTS_AT = f"""
SELECT e.id, e.at, e.pod_uid, a.namespace, a.pod_name, a.node, e.state, e.reason
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.at <= $1 AND e.at > $1 - interval '1 hour'
 ORDER BY e.at DESC, e.id DESC LIMIT {MAX_RECENT}
"""
# The publisher of its outbox keeps one connection for as long as it runs. A standby sees none of
# the primary's: unknown. So is when another role's connections were used last.
_SCHEDULERS = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE count(*) END AS connections,
       max(state_change) AS used_at
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = $1
"""


class SchedulerActivity(NamedTuple):
    """State of schedulers' connections to Postgres; None is unknown."""

    connections: int | None
    used_at: datetime | None
    """Time at which one of the connections was used last."""


async def read_schedulers(connection: Connection) -> SchedulerActivity:
    """Read the state of schedulers' connections."""
    return SchedulerActivity(*await connection.fetchrow(_SCHEDULERS, SCHEDULER))


async def read_recent(
    connection: Connection, at: datetime | None = None
) -> tuple[tuple[Row, ...], int]:
    """Read the last events, the newest first, and the number of the newest (0: none)."""
    rows = await (connection.fetch(_EVENTS) if at is None else connection.fetch(_EVENTS_AT, at))
    return tuple(rows), max((row["id"] for row in rows), default=0)


async def read_waiting(
    connection: Connection, at: datetime | None = None
) -> tuple[int, dict[str, int]]:
    """Read the number of waiting pods, also by first reason (question `pending-reasons`)."""
    found = await answer(connection, "pending-reasons", {} if at is None else {"at": at})
    counts = {str(row["reason_code"]): int(row["pod_count"]) for row in found.rows}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return sum(counts.values()), dict(ordered)


# Samples node by node, since the index begins with it. An agent reports at least every 45 s.
_USE = f"""
WITH found AS (
    SELECT s.sampled_at AS at, s.device_uuid, s.pod_uid, s.container,
           s.memory_used_bytes / {MIB}.0::float8 AS memory_mib, s.core_percent
      FROM unnest($1::text[]) AS n (name) CROSS JOIN LATERAL (
           SELECT * FROM usage_samples
            WHERE node = n.name AND sampled_at > $3::timestamptz - interval '90 seconds'
              AND sampled_at <= $3 AND pod_uid = ANY($2::text[])) s
    UNION ALL
    SELECT bucket_start, device_uuid, pod_uid, container,
           memory_used_sum_bytes / sample_count / {MIB}, core_percent_sum / sample_count
      FROM usage_rollups
     WHERE bucket_start = ANY($4::timestamptz[]) AND bucket_s = {BUCKET_S}
       AND node = ANY($1::text[]) AND pod_uid = ANY($2::text[])
)
SELECT DISTINCT ON (device_uuid, pod_uid, container) * FROM found
 ORDER BY device_uuid, pod_uid, container, at DESC
"""


async def read_use(
    connection: Connection,
    nodes: Sequence[str],
    at: datetime,
    *,
    uids: Sequence[str] = ("",),
    summed: bool = False,
) -> list[Row]:
    """Read the newest use of each card or slice of these nodes.

    Args:
        connection: a reading of the ledger.
        nodes: where to look.
        at: the moment that is shown.
        uids: pods whose slices are wanted; an empty one is for whole cards.
        summed: the mean of five minutes, up to 20 minutes old, stands for a sample that is missing.
    """
    end = int(at.timestamp()) // BUCKET_S * BUCKET_S
    count = SUMMED_BUCKETS if summed else 0
    buckets = [datetime.fromtimestamp(end - BUCKET_S * n, UTC) for n in range(count)]
    rows: list[Row] = await connection.fetch(_USE, list(nodes), list(uids), at, buckets)
    return rows


def card_use(rows: Iterable[Row]) -> dict[str, MeasuredUse]:
    """Return the use of whole cards by uuid."""
    return {
        row["device_uuid"]: MeasuredUse(
            memory_mib=row["memory_mib"], core_percent=row["core_percent"], at=row["at"]
        )
        for row in rows
        if not row["pod_uid"]
    }
