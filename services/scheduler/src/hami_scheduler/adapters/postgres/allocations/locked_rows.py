"""Check and count grants on locked rows of cards and quotas in memory, then write them together.

Locks are taken in one order: allocations, then quotas, then cards by uuid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Self

from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import CapacityConflict, QuotaConflict
from hamicommon.ledger.card_rows import CardDemand, CardRow
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import CardCounters, QuotaAmounts, QuotaUse

_LOCK_QUOTAS = """
SELECT namespace, resource, limit_amount, used_amount FROM quotas
 WHERE namespace = ANY($1::text[]) ORDER BY namespace, resource FOR UPDATE
"""
_LOCK_CARDS = """
SELECT uuid, node, present, healthy AND present AS is_offered, cordoned AS is_cordoned, slots,
       memory_mib, core_percent, used_slots, used_memory_mib, used_core_percent, ceiling_slots,
       ceiling_memory_mib, ceiling_core_percent, version, holdings
  FROM devices WHERE uuid = ANY($1::text[]) ORDER BY uuid FOR NO KEY UPDATE
"""
_WRITE_QUOTAS = """
UPDATE quotas q SET used_amount = w.used, updated_at = now()
  FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w (namespace, resource, used)
 WHERE q.namespace = w.namespace AND q.resource = w.resource
"""
_WRITE_CARDS = """
UPDATE devices d
   SET used_slots = w.used_slots, used_memory_mib = w.used_memory_mib,
       used_core_percent = w.used_core_percent, ceiling_slots = w.ceiling_slots,
       ceiling_memory_mib = w.ceiling_memory_mib, ceiling_core_percent = w.ceiling_core_percent,
       holdings = w.holdings, version = w.version, updated_at = now()
  FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[],
              $8::jsonb[], $9::bigint[])
         AS w (uuid, used_slots, used_memory_mib, used_core_percent, ceiling_slots,
               ceiling_memory_mib, ceiling_core_percent, holdings, version)
 WHERE d.uuid = w.uuid
"""


Count = Callable[[CardRow, AllocationId, CardDemand], None]


@dataclass(slots=True)
class _Quota:
    limit: int | None
    used: int


@dataclass(eq=False)
class LockedRows:
    """Rows of cards and quotas that a transaction has locked, changed in memory until `write`."""

    cards: dict[GpuUuid, CardRow]
    quotas: dict[tuple[str, str], _Quota]
    absent: Collection[GpuUuid]
    """Cards that their node does not report any more; they give back, and take nothing."""

    def __post_init__(self) -> None:
        self._changed_cards: set[GpuUuid] = set()
        self._changed_quotas: set[tuple[str, str]] = set()

    @classmethod
    async def lock(
        cls, connection: Connection, *, namespaces: Collection[str], cards: Collection[GpuUuid]
    ) -> Self:
        """Lock the quotas of the namespaces, then the cards."""
        quotas = await connection.fetch(_LOCK_QUOTAS, sorted(namespaces)) if namespaces else ()
        rows = await connection.fetch(_LOCK_CARDS, sorted(cards)) if cards else ()
        return cls(
            {GpuUuid(row["uuid"]): CardRow(**_fields(row)) for row in rows},
            {
                (row["namespace"], row["resource"]): _Quota(row["limit_amount"], row["used_amount"])
                for row in quotas
            },
            absent={GpuUuid(row["uuid"]) for row in rows if not row["present"]},
        )

    def check_quota(self, namespace: str, amounts: QuotaAmounts) -> None:
        """Check a namespace's quotas. Raises: QuotaConflict."""
        for resource, wanted in sorted(amounts.items()):
            quota = self.quotas.get((namespace, resource))
            if quota is None or quota.limit is None or wanted <= 0:
                continue
            if quota.used + wanted > quota.limit:
                raise QuotaConflict(
                    namespace, resource, limit=quota.limit, used=quota.used, wanted=wanted
                )

    def check_cards(
        self,
        node: NodeName,
        wanted: Sequence[CardDemand],
        *,
        without: Mapping[AllocationId, Sequence[CardDemand]] = MappingProxyType({}),
    ) -> None:
        """Check the cards of a new grant.

        Raises: CapacityConflict naming the first that can't take it.

        The grants in `without` are left out of account.
        """
        for want in wanted:
            card = self.cards.get(want.uuid)
            if card is not None and without:
                card = replace(card, holdings=dict(card.holdings))
                for owner, held in without.items():
                    for each in held:
                        if each.uuid == card.uuid:
                            card.give_back(owner, each)
            if card is None or not card.can_take(node, want):
                raise CapacityConflict(
                    want.uuid,
                    f"card {want.uuid} on {node} can no longer hold {want.memory_mib} of memory "
                    f"and {want.core_percent} of cores in {want.slots} slots",
                )

    def check_present(self, node: NodeName, held: Sequence[CardDemand]) -> None:
        """Check that the node has the cards.

        Raises: CapacityConflict naming the first that it lacks.
        """
        for card in held:
            row = self.cards.get(card.uuid)
            if row is None or row.node != node or card.uuid in self.absent:
                raise CapacityConflict(card.uuid, f"card {card.uuid} is not on node {node}")

    def take(
        self, owner: AllocationId, wanted: Iterable[CardDemand], count: Count = CardRow.take
    ) -> None:
        """Count a grant; a `count` other than `CardRow.take` raises ceilings to the use."""
        for want in wanted:
            count(self._card(want.uuid), owner, want)

    def take_room(self, owner: AllocationId, node: NodeName, room: Sequence[CardDemand]) -> None:
        """Make a counted room (cards kept for a waiting pod) an ordinary grant.

        Raises: CapacityConflict if the cards still have no place for it; it stays counted then.
        """
        self.give_back(owner, room)
        fits = False
        try:
            self.check_cards(node, room)
            fits = True
        finally:
            counted = (each for each in room if each.uuid in self.cards)
            self.take(owner, counted, CardRow.take if fits else CardRow.count_room)

    def give_back(self, owner: AllocationId, held: Iterable[CardDemand]) -> None:
        """Subtract a grant's slices; a card that is no longer in the ledger is skipped."""
        for card in held:
            if card.uuid in self.cards:
                self._card(card.uuid).give_back(owner, card)

    def count_quota(self, namespace: str, amounts: QuotaAmounts, sign: int) -> None:
        """Add the amounts to the namespace's use, or with `sign` -1 subtract them."""
        for resource, amount in amounts.items():
            quota = self.quotas.get((namespace, resource))
            if quota is not None and amount:
                quota.used = max(0, quota.used + sign * amount)
                self._changed_quotas.add((namespace, resource))

    async def write(self, connection: Connection) -> None:
        """Write the rows that changed."""
        if self._changed_quotas:
            keys = sorted(self._changed_quotas)
            await connection.execute(
                _WRITE_QUOTAS,
                [namespace for namespace, _ in keys],
                [resource for _, resource in keys],
                [self.quotas[key].used for key in keys],
            )
        if self._changed_cards:
            rows = [_COLUMNS(self.cards[uuid]) for uuid in sorted(self._changed_cards)]
            await connection.execute(_WRITE_CARDS, *map(list, zip(*rows, strict=True)))

    def counters(self, uuids: Iterable[GpuUuid]) -> tuple[CardCounters, ...]:
        """Return the counters of these cards as they will be written."""
        return tuple(self.cards[uuid].counters() for uuid in uuids if uuid in self.cards)

    def quota_use(self, namespace: str, amounts: Mapping[str, int]) -> tuple[QuotaUse, ...]:
        """Return the use of the namespace's quotas on these resources as it will be written."""
        return tuple(
            QuotaUse(namespace, resource, quota.limit, quota.used)
            for resource in sorted(amounts)
            if (quota := self.quotas.get((namespace, resource))) is not None
        )

    def _card(self, uuid: GpuUuid) -> CardRow:
        row = self.cards[uuid]
        if uuid not in self._changed_cards:
            # Once a transaction, however many grants of it change the card.
            self._changed_cards.add(uuid)
            row.version += 1
        return row


def _fields(row: Any) -> dict[str, Any]:
    fields = {**dict(row), "holdings": dict(row["holdings"])}
    del fields["present"]
    return fields


_COLUMNS = attrgetter(
    *("uuid", "used_slots", "used_memory_mib", "used_core_percent", "ceiling_slots"),
    *("ceiling_memory_mib", "ceiling_core_percent", "holdings", "version"),
)
"""Columns of a card for `_WRITE_CARDS`."""
