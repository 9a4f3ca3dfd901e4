"""Cards and quotas of the ledger in memory: the amounts counted on them, and the free ones.

`ledger.py` checks before a grant and counts it afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import CapacityConflict, QuotaConflict
from hamicommon.ledger.card_rows import CardDemand, CardRow
from hamicommon.ledger.model import CardCounters, QuotaAmounts, QuotaUse


class LedgerCapacity:
    """The rows of cards and quotas."""

    def __init__(self) -> None:
        self._cards: dict[GpuUuid, CardRow] = {}
        self._devices: dict[GpuUuid, GpuDevice] = {}
        self._quotas: dict[tuple[str, str], list[int]] = {}

    def add_card(self, node: NodeName, device: GpuDevice, *, cordoned: bool = False) -> None:
        """Add a card, or change its capacity and state."""
        old = self._cards.get(device.uuid)
        used = (0, 0, 0)
        if old is not None:
            node = old.node
            used = (old.used_slots, old.used_memory_mib, old.used_core_percent)
        self._devices[device.uuid] = device
        self._cards[device.uuid] = CardRow(
            uuid=device.uuid,
            node=node,
            is_offered=device.healthy,
            is_cordoned=cordoned,
            slots=device.slots,
            memory_mib=device.memory_mib,
            core_percent=device.core_percent,
            used_slots=used[0],
            used_memory_mib=used[1],
            used_core_percent=used[2],
            ceiling_slots=max(device.slots, used[0]),
            ceiling_memory_mib=max(device.memory_mib, used[1]),
            ceiling_core_percent=max(device.core_percent, used[2]),
            version=1 if old is None else old.version + 1,
            holdings={} if old is None else old.holdings,
        )

    def set_quota(self, namespace: str, resource: str, limit: int) -> None:
        """Limit a namespace."""
        self._quotas.setdefault((namespace, resource), [0, 0])[0] = limit

    def usage(self, uuid: GpuUuid) -> DeviceUsage:
        """Return the card with its granted amounts."""
        row = self._cards[uuid]
        return DeviceUsage(
            device=self._devices[uuid],
            used_slots=row.used_slots,
            used_memory_mib=row.used_memory_mib,
            used_core_percent=row.used_core_percent,
            cordoned=row.is_cordoned,
            holdings=row.details(),
        )

    def version(self, uuid: GpuUuid) -> int:
        """The version of the card's row."""
        return self._cards[uuid].version

    def _check(
        self,
        node: NodeName,
        wanted: Sequence[CardDemand],
        without: Mapping[AllocationId, Sequence[CardDemand]] = MappingProxyType({}),
    ) -> None:
        for want in wanted:
            card = self._cards.get(want.uuid)
            if card is not None:
                card = replace(card, holdings=dict(card.holdings))
                for owner, held in without.items():
                    for each in held:
                        if each.uuid == card.uuid:
                            card.give_back(owner, each)
            if card is None or not card.can_take(node, want):
                raise CapacityConflict(
                    want.uuid, f"card {want.uuid} on {node} can no longer hold the slice"
                )

    def _take(
        self,
        owner: AllocationId,
        cards: Sequence[CardDemand],
        count: Callable[[CardRow, AllocationId, CardDemand], None] = CardRow.take,
    ) -> None:
        for want in cards:
            row = self._cards[want.uuid]
            count(row, owner, want)
            row.version += 1

    def _give(self, owner: AllocationId, cards: Sequence[CardDemand]) -> None:
        for card in cards:
            self._cards[card.uuid].give_back(owner, card)
            self._cards[card.uuid].version += 1

    def _counters(self, uuids: Sequence[GpuUuid]) -> tuple[CardCounters, ...]:
        return tuple(self._cards[uuid].counters() for uuid in uuids)

    def _check_quota(self, namespace: str, wanted: QuotaAmounts) -> None:
        for resource, amount in wanted.items():
            row = self._quotas.get((namespace, resource))
            if row is not None and amount > 0 and row[1] + amount > row[0]:
                raise QuotaConflict(namespace, resource, limit=row[0], used=row[1], wanted=amount)

    def _count_quota(
        self, namespace: str, amounts: QuotaAmounts, sign: int
    ) -> tuple[QuotaUse, ...]:
        changed = []
        for resource, amount in sorted(amounts.items()):
            row = self._quotas.get((namespace, resource))
            if row is not None:
                row[1] = max(0, row[1] + sign * amount)
                changed.append(QuotaUse(namespace, resource, row[0], row[1]))
        return tuple(changed)
