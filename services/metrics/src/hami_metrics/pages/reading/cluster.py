"""Nodes, cards and holders: now, what changed of them, and at a moment of the past."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from hamicommon.ledger.connection import Connection
from hamicommon.ledger.footprint import footprint

from hami_metrics.pages.domain.cluster import CardHolder, PageCard, PageNode

MOST_CARDS = 100_000
"""More is not one page; the largest clusters known have a tenth of it."""

_NODES = """
SELECT name, source, inventory_at, coalesce(node_group, '') AS node_group FROM nodes
 WHERE gone_at IS NULL AND ($1::text[] IS NULL OR name = ANY($1)) ORDER BY name
"""
_CARDS = f"""
SELECT d.uuid, d.node, d.index, d.type, d.slots, d.memory_mib, d.core_percent, d.used_slots,
       d.used_memory_mib, d.used_core_percent, d.healthy, d.health_reason, d.cordoned
  FROM devices d WHERE d.present AND ($1::text[] IS NULL OR d.node = ANY($1))
   AND ($2::text[] IS NULL OR d.uuid = ANY($2))
 ORDER BY d.node, d.index, d.uuid LIMIT {MOST_CARDS}
"""
_FOOTPRINT = f"""
       {footprint("memory_mib")},
       {footprint("core_percent")}
"""
_HOLDERS = f"""
SELECT x.device_uuid, a.pod_uid, a.namespace, a.pod_name, a.state, a.reserved_at, {_FOOTPRINT}
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
 WHERE a.ended_at IS NULL AND ($1::text[] IS NULL OR a.node = ANY($1))
   AND ($2::text[] IS NULL OR x.device_uuid = ANY($2))
 GROUP BY a.id, x.device_uuid
"""
_HOLDERS_AT = f"""
SELECT x.device_uuid, a.pod_uid, a.namespace, a.pod_name, a.state, a.reserved_at, {_FOOTPRINT}
  FROM (SELECT * FROM allocations WHERE ended_at IS NULL AND reserved_at <= $1
         UNION ALL
        SELECT * FROM allocations
         WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) @> $1) a
  JOIN allocation_devices x ON x.allocation_id = a.id
 WHERE $2::text[] IS NULL OR a.node = ANY($2)
 GROUP BY a.id, a.pod_uid, a.namespace, a.pod_name, a.state, a.reserved_at, x.device_uuid
"""
# What it was then; of a card whose periods begin later, but that was so before, the first one.
_CARDS_AT = f"""
SELECT p.device_uuid AS uuid, p.node, coalesce(d.index, 0) AS index, p.type, p.slots, p.memory_mib,
       p.core_percent, p.healthy, p.health_reason, p.cordoned
  FROM device_periods p LEFT JOIN devices d ON d.uuid = p.device_uuid
 WHERE p.present AND (p.began_at <= $1 OR NOT p.since_known)
   AND (p.ended_at IS NULL OR p.ended_at > $1)
   AND ($2::text[] IS NULL OR p.node = ANY($2))
 ORDER BY p.node, 3, p.device_uuid LIMIT {MOST_CARDS}
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
    """That a card, or a grant on it, was written at a moment; one that is met again is known."""

    node: str
    uuid: str
    at: datetime
    event: int
    """Number of the grant's event; 0: the card itself was written."""


async def read_nodes(
    connection: Connection, names: Collection[str] | None = None
) -> dict[str, PageNode]:
    """Those nodes as they are, or all; one that is gone is left out."""
    chosen = None if names is None else sorted(names)
    by_node: dict[str, list[PageCard]] = defaultdict(list)
    for card in await _read_cards(connection, chosen, None):
        by_node[card.node].append(card)
    rows = await connection.fetch(_NODES, chosen)
    return {row["name"]: _node(row, tuple(by_node.get(row["name"], ()))) for row in rows}


async def read_bare_nodes(connection: Connection) -> dict[str, PageNode]:
    """All nodes that are there, without their cards: when each was heard, and its group."""
    return {row["name"]: _node(row, ()) for row in await connection.fetch(_NODES, None)}


async def read_cards(connection: Connection, marks: Collection[ChangeMark]) -> list[PageCard]:
    """The cards that these marks are of, as they are; one that is not present is left out."""
    if not marks:
        return []
    names = sorted({mark.node for mark in marks})
    return await _read_cards(connection, names, sorted({mark.uuid for mark in marks}))


async def read_nodes_at(
    connection: Connection, at: datetime, names: Collection[str] | None = None
) -> dict[str, PageNode]:
    """Those nodes as they were at a moment; what is granted is summed from who held it."""
    chosen = None if names is None else sorted(names)
    holders = _by_card(await connection.fetch(_HOLDERS_AT, at, chosen))
    by_node: dict[str, list[PageCard]] = defaultdict(list)
    for row in await connection.fetch(_CARDS_AT, at, chosen):
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
    groups = {row["name"]: row["node_group"] for row in await connection.fetch(_GROUPS)}
    return {
        name: PageNode(
            name=name,
            source="agent",
            heard_at=at,
            cards=tuple(cards),
            group=groups.get(name, ""),
        )
        for name, cards in by_node.items()
    }


async def read_marks(connection: Connection, since: datetime, event: int) -> frozenset[ChangeMark]:
    """What was written after that moment, or after that event's number."""
    return frozenset(ChangeMark(*row) for row in await connection.fetch(_MARKS, since, event))


async def _read_cards(
    connection: Connection, names: Sequence[str] | None, uuids: Sequence[str] | None = None
) -> list[PageCard]:
    # The node of a grant's event is the grant's: a card of that uuid may stand in another by now.
    of = names if uuids is None else None
    rows = await connection.fetch(_CARDS, of, uuids)
    holders = _by_card(await connection.fetch(_HOLDERS, names, uuids))
    return [PageCard(**row, holders=holders.get(row["uuid"], ())) for row in rows]


def _node(row: Mapping[str, Any], cards: tuple[PageCard, ...]) -> PageNode:
    return PageNode(
        name=row["name"],
        source=row["source"],
        heard_at=row["inventory_at"],
        cards=cards,
        group=row["node_group"],
    )


def _by_card(rows: Iterable[Sequence[Any]]) -> dict[str, tuple[CardHolder, ...]]:
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
    return {uuid: tuple(sorted(held, key=_largest_first)) for uuid, held in found.items()}


def _largest_first(holder: CardHolder) -> tuple[int, str, str, str]:
    return -holder.memory_mib, holder.namespace, holder.pod_name, holder.pod_uid
