"""Cards and quotas of the ledger in memory: what is counted on them, and what may still be taken.

`cards.py` has one card's row; `ledger.py` checks before a grant and counts it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import CapacityConflict, QuotaConflict
from hamicommon.ledger.cards.demands import CardDemand
from hamicommon.ledger.model import CardCounters, QuotaAmounts
from hamicommon.testing.cards import CardBuilder


class LedgerCapacity:
    """The rows of cards and quotas."""

    def __init__(self) -> None:
        self._cards: dict[GpuUuid, CardBuilder] = {}
        self._quotas: dict[tuple[str, str], list[int]] = {}

    def add_card(self, node: NodeName, device: GpuDevice, *, cordoned: bool = False) -> None:
        """Puts a card there, or changes what it is."""
        old = self._cards.get(device.uuid)
        if old is None:
            self._cards[device.uuid] = CardBuilder(node, device, cordoned=cordoned)
        else:
            old.device, old.cordoned, old.version = device, cordoned, old.version + 1

    def set_quota(self, namespace: str, resource: str, limit: int) -> None:
        """Limits a namespace."""
        self._quotas.setdefault((namespace, resource), [0, 0])[0] = limit

    def usage(self, uuid: GpuUuid) -> DeviceUsage:
        """The card with what is granted on it."""
        return self._cards[uuid].usage()

    def version(self, uuid: GpuUuid) -> int:
        """The version of the card's row."""
        return self._cards[uuid].version

    def _check(
        self,
        node: NodeName,
        gives: AllocationId | None,
        held: Sequence[CardDemand],
        wanted: Sequence[CardDemand],
        *,
        mutex: bool,
    ) -> None:
        back: Mapping[GpuUuid, CardDemand] = {card.uuid: card for card in held}
        for want in wanted:
            card = self._cards.get(want.uuid)
            if (
                card is None
                or card.node != node
                or not card.takes(want, owner=gives, back=back.get(want.uuid), mutex=mutex)
            ):
                raise CapacityConflict(
                    want.uuid, f"card {want.uuid} on {node} can no longer hold the slice"
                )

    def _count(self, owner: AllocationId, cards: Sequence[CardDemand], sign: int) -> None:
        for card in cards:
            self._cards[card.uuid].count(owner, card, sign)

    def _counters(self, uuids: Sequence[GpuUuid]) -> tuple[CardCounters, ...]:
        return tuple(self._cards[uuid].counters() for uuid in uuids)

    def _check_quota(self, namespace: str, given: QuotaAmounts, wanted: QuotaAmounts) -> None:
        for resource, amount in wanted.items():
            row = self._quotas.get((namespace, resource))
            if row is not None and row[1] - given.get(resource, 0) + amount > row[0]:
                used = row[1] - given.get(resource, 0)
                raise QuotaConflict(namespace, resource, limit=row[0], used=used, wanted=amount)

    def _count_quota(self, namespace: str, amounts: QuotaAmounts, sign: int) -> None:
        for resource, amount in amounts.items():
            row = self._quotas.get((namespace, resource))
            if row is not None:
                row[1] += sign * amount
