"""Allocations that move to the cards that the kubelet gave, inside a transaction of the store."""

from __future__ import annotations

from collections.abc import Sequence

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId
from hamicommon.ledger.cards.moves import Move, exchanged, quota_changes
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import Change, QuotaOf, Rules

from hami_scheduler.adapters.postgres.allocations.locked_rows import LockedRows
from hami_scheduler.adapters.postgres.allocations.writing import (
    SHARE_COLUMNS,
    SHARE_VALUES,
    NewEvent,
    columns,
    insert_events,
    share_rows,
)
from hami_scheduler.adapters.postgres.rows import SELECT_ALLOCATION, allocation_of, locked

_INSERT_SHARES = f"""
INSERT INTO allocation_devices ({SHARE_COLUMNS})
SELECT $1, {SHARE_VALUES}
  FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[],
              $8::int[], $9::int[], $10::int[], $11::text[], $12::jsonb[])
         AS s (container_index, position, container_name, role, device_uuid, vendor, memory_mib,
               core_percent, slots, type, detail)
"""
_DELETE_SHARES = "DELETE FROM allocation_devices WHERE allocation_id = $1"
REASON = "moved to the cards that the kubelet gave"


async def move(
    connection: Connection, moves: Sequence[Move], rules: Rules, quota_of: QuotaOf
) -> tuple[Change, ...] | None:
    """Exchange the cards of all; None if one is not live under its token any more.

    Raises: CapacityConflict, QuotaConflict.
    """
    moved: list[tuple[Allocation, Move]] = []
    for each in sorted(moves, key=lambda each: each.allocation_id):
        old = await locked(connection, each.allocation_id)
        if old is None or old.token != each.token or not old.live:
            return None
        moved.append((old, each))
    changes = quota_changes(moved, quota_of)
    swaps = [(old, each, *exchanged(old.containers, each.containers, rules)) for old, each in moved]
    cards = {card.uuid for _, _, given, taken in swaps for card in (*given, *taken)}
    ledger = await LockedRows.lock(connection, namespaces=set(changes), cards=cards)
    for namespace, amounts in changes.items():
        ledger.check_quota(namespace, amounts)
        ledger.count_quota(namespace, amounts, 1)
    for old, _, given, _ in swaps:
        ledger.give_back(old.id, given)
    for old, _, _, taken in swaps:
        ledger.check_cards(old.node, taken, mutex=False)
        ledger.take(old.id, taken, held=False)
    await ledger.write(connection)
    found = []
    for old, each, given, taken in swaps:
        touched = sorted({card.uuid for card in (*given, *taken)})
        await write_shares(connection, old.id, each.containers)
        counters = ledger.counters(touched)
        event = NewEvent(
            allocation_id=old.id,
            pod_uid=old.pod_uid,
            previous=old.state,
            state=old.state,
            reason=REASON,
            actor="node-agent",
            detail={"before": card_names(old.containers), "after": card_names(each.containers)},
        )
        [sequence] = await insert_events(connection, [event])
        row = await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", old.id)
        found.append(Change(allocation=allocation_of(row), sequence=sequence, counters=counters))
    return tuple(found)


async def write_shares(
    connection: Connection, allocation_id: AllocationId, containers: Sequence[ContainerGrant]
) -> None:
    """Write these slices in place of those that the allocation has."""
    await connection.execute(_DELETE_SHARES, allocation_id)
    await connection.execute(_INSERT_SHARES, allocation_id, *columns(share_rows(containers), 11))


def card_names(containers: Sequence[ContainerGrant]) -> dict[str, list[str]]:
    """The cards' ids by container name."""
    return {c.name: [share.uuid for share in c.shares] for c in containers if c.shares}
