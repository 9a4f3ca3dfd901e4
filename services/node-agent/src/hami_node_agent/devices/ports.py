"""Interfaces to the cards, implemented by `adapters/nvml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample
from hamicommon.k8s.mig import MigSlice

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.mig_partition import Instance, OwnInstance, ProfileFacts
from hami_node_agent.devices.offer import CardFacts
from hami_node_agent.devices.processes import CardProcesses
from hami_node_agent.devices.topology import CardLinks


class DeviceProbe(Protocol):
    """Access to the node's cards; every call ends within its time-out or raises Unavailable."""

    async def cards(self) -> tuple[CardFacts, ...]:
        """Return all cards, by index."""

    async def links(self) -> tuple[CardLinks, ...]:
        """Return the links between cards, by index. Raises: Unavailable."""

    async def reload(self) -> bool:
        """Initialise NVML again if the driver was reloaded, or cards were added or removed.

        True if it did.

        Raises: Unavailable while the driver is unavailable.
        """

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """Return cards that do not answer, with the reason."""

    async def watch_events(self) -> None:
        """Register for XID events, after `cards` and before `next_xid`."""

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Wait about a second for an XID event; uuid None: any card may be meant."""

    async def samples(self) -> tuple[DeviceSample, ...]:
        """Sample each card. Raises: Unavailable."""

    async def processes(self) -> Mapping[str, CardProcesses]:
        """Read each card's processes, and their use since the last call.

        Raises: Unavailable.
        """


class MigDriver(Protocol):
    """Cuts cards into MIG instances; every call ends within its time-out or raises Unavailable."""

    async def profiles(self, card: GpuUuid) -> tuple[ProfileFacts, ...]:
        """Return the MIG profiles of the card; an unused card is put into MIG mode.

        Raises: Conflict when that can't be done now, with the reason; Unavailable.
        """

    async def instances(self, cards: Sequence[GpuUuid]) -> tuple[Instance, ...]:
        """Return all GPU instances of these cards. Raises: Unavailable."""

    async def make(self, card: GpuUuid, part: MigSlice) -> OwnInstance:
        """Create GPU and compute instance of that profile at that place.

        Raises: Conflict when there is no such profile or no room there; Unavailable.
        """

    async def destroy(self, instance: Instance) -> None:
        """Destroy a GPU instance with its contents; without effect if it is gone.

        Raises: Conflict while a process uses it; Unavailable.
        """
