"""The guarded UPDATEs of cards and quotas, inside a transaction of the store.

Order of locks is quota first, then cards by uuid. Every statement is guarded by its own WHERE: a
card that no longer fits matches no row, whatever the view believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import CapacityConflict, QuotaConflict
from hamicommon.ledger.cards.demands import CardDemand
from hamicommon.ledger.cards.moves import Move, exchanged
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import CardCounters, QuotaAmounts, Rules

from hami_scheduler.adapters.postgres.allocations.encoding import latest_counters
from hami_scheduler.adapters.postgres.rows import HOLDINGS, counters_of

RETURNING = f"""
RETURNING node, uuid, used_slots, used_memory_mib, used_core_percent, version,
          {HOLDINGS} AS holdings
"""
_TAKE = f"""
UPDATE devices SET used_slots = used_slots + $3, used_memory_mib = used_memory_mib + $4,
       used_core_percent = used_core_percent + $5, holdings = holdings || $11::jsonb,
       ceiling_core_percent = greatest(ceiling_core_percent, $12), version = version + 1,
       updated_at = now()
 WHERE uuid = $1 AND node = $2 AND healthy AND present AND NOT ($9 AND cordoned)
   AND used_slots + $3 <= slots
   AND used_memory_mib + $4 <= memory_mib
   AND used_core_percent + $5 <= coalesce($12, core_percent)
   AND NOT ($6 AND used_slots > 0)
   AND NOT ($7 AND coalesce($12, core_percent) = 100 AND used_slots > 0)
   AND NOT ($8 AND coalesce($12, core_percent) <> 0
            AND used_core_percent = coalesce($12, core_percent))
   AND ($10::bigint IS NULL OR version = $10)
   AND ($11::jsonb = '{{}}' OR hami_placements_disjoint(holdings || $11::jsonb))
{RETURNING}
"""
# The ceiling comes down with what is given back, but never below capacity.
_GIVE = f"""
UPDATE devices SET used_slots = used_slots - $2, used_memory_mib = used_memory_mib - $3,
       used_core_percent = used_core_percent - $4,
       ceiling_slots = greatest(slots, used_slots - $2),
       ceiling_memory_mib = greatest(memory_mib, used_memory_mib - $3),
       ceiling_core_percent = greatest(core_percent, used_core_percent - $4),
       holdings = holdings - $5::text, version = version + 1, updated_at = now()
 WHERE uuid = $1
{RETURNING}
"""
_LOCK = "SELECT uuid, version FROM devices WHERE uuid = ANY($1::text[]) ORDER BY uuid FOR UPDATE"
_QUOTA_LOCK = """
SELECT resource, limit_amount, used_amount FROM quotas
 WHERE namespace = $1 AND resource = ANY($2::text[]) ORDER BY resource FOR UPDATE
"""
_QUOTA_ADD = """
UPDATE quotas SET used_amount = greatest(0, used_amount + $3), updated_at = now()
 WHERE namespace = $1 AND resource = $2
"""


async def lock_cards(connection: Connection, uuids: Sequence[GpuUuid]) -> dict[GpuUuid, int]:
    """Locks the rows in uuid order, for a transaction that both gives and takes.

    Returns their versions.
    """
    return {row["uuid"]: row["version"] for row in await connection.fetch(_LOCK, list(uuids))}


def check_seen(
    versions: Mapping[GpuUuid, int], wanted: Sequence[CardDemand]
) -> tuple[CardDemand, ...]:
    """The demands, with the versions they insist on found right on locked rows.

    For a transaction that gives back first, and so moves the versions itself.
    Raises: CapacityConflict naming a card that changed since it was seen.
    """
    for card in wanted:
        if card.seen is not None and versions.get(card.uuid) != card.seen:
            raise CapacityConflict(card.uuid, f"card {card.uuid} changed since it was chosen")
    return tuple(replace(card, seen=None) for card in wanted)


async def take_cards(
    connection: Connection,
    allocation_id: AllocationId,
    node: NodeName,
    wanted: Sequence[CardDemand],
    *,
    mutex: bool,
) -> tuple[CardCounters, ...]:
    """Takes every card or raises; `wanted` is in uuid order.

    Raises: CapacityConflict naming the first card that refused.
    """
    rows = await connection.fetchmany(
        _TAKE, [(card.uuid, node, *take_columns(allocation_id, card, mutex)) for card in wanted]
    )
    taken = {row["uuid"] for row in rows}
    for card in wanted:
        if card.uuid not in taken:
            raise CapacityConflict(
                card.uuid,
                f"card {card.uuid} on {node} can no longer hold {card.memory_mib} of memory and "
                f"{card.core_percent} of cores in {card.slots} slots",
            )
    return tuple(counters_of(row) for row in rows)


def take_columns(allocation_id: AllocationId, card: CardDemand, mutex: bool) -> tuple[Any, ...]:
    """What the guarded UPDATE compares and adds, from the slots on."""
    return (
        card.slots,
        card.memory_mib,
        card.core_percent,
        mutex,
        card.exclusive,
        card.coreless,
        card.respects_cordon,
        card.seen,
        {allocation_id: list(card.details)} if card.details else {},
        card.core_total,
    )


async def give_cards(
    connection: Connection, allocation_id: AllocationId, held: Sequence[CardDemand]
) -> tuple[CardCounters, ...]:
    """Gives back what an allocation held; `held` is in uuid order."""
    if not held:
        return ()
    rows = await connection.fetchmany(
        _GIVE,
        [
            (card.uuid, card.slots, card.memory_mib, card.core_percent, allocation_id)
            for card in held
        ],
    )
    return tuple(counters_of(row) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What a move changes of one allocation; `given` and `taken` are in uuid order."""

    old: Allocation
    containers: tuple[ContainerGrant, ...]
    given: tuple[CardDemand, ...]
    taken: tuple[CardDemand, ...]

    @classmethod
    def of(cls, old: Allocation, move: Move, rules: Rules) -> Swap:
        """The change that `move` makes of `old`."""
        given, taken = exchanged(old.containers, move.containers, rules)
        return cls(old=old, containers=move.containers, given=given, taken=taken)

    @property
    def cards(self) -> list[GpuUuid]:
        """The cards whose rows change, in order."""
        return sorted({card.uuid for card in (*self.given, *self.taken)})


async def exchange_cards(
    connection: Connection, swaps: Sequence[Swap]
) -> dict[GpuUuid, CardCounters]:
    """Takes the cards of all once all have given theirs back.

    Returns the counters of every card that changed. Raises: CapacityConflict.
    """
    await lock_cards(connection, sorted({uuid for swap in swaps for uuid in swap.cards}))
    counters: list[CardCounters] = []
    for swap in swaps:
        counters += await give_cards(connection, swap.old.id, swap.given)
    for swap in swaps:
        old = swap.old
        counters += await take_cards(connection, old.id, old.node, swap.taken, mutex=False)
    return {card.uuid: card for card in latest_counters(counters)}


async def take_quota(
    connection: Connection, namespace: str, amounts: QuotaAmounts, *, guarded: bool = True
) -> None:
    """Counts the amounts against the namespace's quotas, where it has any.

    Raises: QuotaConflict, if `guarded`.
    """
    if not amounts:
        return
    rows = await connection.fetch(_QUOTA_LOCK, namespace, sorted(amounts))
    for row in rows:
        wanted = amounts[row["resource"]]
        limit, used = row["limit_amount"], row["used_amount"]
        if guarded and limit is not None and wanted > 0 and used + wanted > limit:
            raise QuotaConflict(namespace, row["resource"], limit=limit, used=used, wanted=wanted)
    if rows:
        await connection.executemany(
            _QUOTA_ADD, [(namespace, row["resource"], amounts[row["resource"]]) for row in rows]
        )


async def give_quota(connection: Connection, namespace: str, amounts: QuotaAmounts) -> None:
    """Returns the amounts to the namespace's quotas, where it has any."""
    if not amounts:
        return
    rows = await connection.fetch(_QUOTA_LOCK, namespace, sorted(amounts))
    if rows:
        await connection.executemany(
            _QUOTA_ADD, [(namespace, row["resource"], -amounts[row["resource"]]) for row in rows]
        )
