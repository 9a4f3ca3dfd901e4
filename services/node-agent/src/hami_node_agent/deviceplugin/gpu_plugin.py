"""Device plugin of NVIDIA slices (`nvidia.com/gpu`), with a device per slot of each card.

ListAndWatch follows `tracker.py`; Allocate and GetPreferredAllocation go to `allocate.py`,
PreStartContainer to `prestart.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.deviceplugin.servicer import AdvertisedDevice, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.devices.replica_ids import card_of, replicas_of
from hami_node_agent.inventory.tracker import CardTracker


class Plugin(DevicePluginService):
    """Device plugin of all cards' slots."""

    def __init__(
        self,
        *,
        cards: CardTracker,
        allocating: Allocate,
        prestarting: PreStart,
        late: LateBinding,
        numa_topology: bool,
        preferred_allocation: bool,
    ) -> None:
        super().__init__(cards.changed, prefers=preferred_allocation, checks_starts=True)
        self._cards = cards
        self._allocating = allocating
        self._prestarting = prestarting
        self._late = late
        self._numa_topology = numa_topology

    def devices(self) -> Iterator[AdvertisedDevice]:
        """Return a device `<GPU-uuid>-<replica>` for each slot."""
        for card in self._cards.devices():
            numa = card.numa if self._numa_topology else None
            for replica in replicas_of(card.uuid, card.slots):
                yield AdvertisedDevice(device_id=str(replica), healthy=card.healthy, numa=numa)

    def knows(self, device_id: str) -> bool:
        """Return whether the card of the device id is known, whatever its slot."""
        return card_of(device_id) in {card.uuid for card in self._cards.devices()}

    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """Answer Allocate with the slices of the grant in flight, or names for late binding."""
        if self._late.is_used:
            return self._late.allocate(requests)
        return await self._allocating.allocate(requests)

    def prefer(
        self, *, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Prefer slots on the granted cards."""
        return self._allocating.prefer(available=available, must_include=must_include, size=size)

    async def check(self, ids: frozenset[str]) -> None:
        """Check that the container with these device ids has its own limits."""
        await self._prestarting.check(ids)
