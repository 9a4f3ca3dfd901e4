"""Ports to the cards; `adapters/nvml` implements them."""

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
    """The node's cards; every call ends within its time-out or raises Unavailable."""

    async def cards(self) -> tuple[CardFacts, ...]:
        """All cards, by index."""

    async def links(self) -> tuple[CardLinks, ...]:
        """How the cards are linked, by index. Raises: Unavailable."""

    async def reload(self) -> bool:
        """Initialise NVML again where the driver was reloaded or cards came or went.

        True if it did.

        Raises: Unavailable while the driver is unavailable.
        """

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """Cards that do not answer, with the reason."""

    async def watch_events(self) -> None:
        """Register for XID events, after `cards`; must precede `next_xid`."""

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Wait about a second for an XID event; a None uuid means that any card may be meant."""

    async def samples(self) -> tuple[DeviceSample, ...]:
        """Sample each card. Raises: Unavailable."""

    async def processes(self) -> Mapping[str, CardProcesses]:
        """List each card's processes, and which computed since the last call.

        Raises: Unavailable.
        """


class MigDriver(Protocol):
    """Cuts cards; every call ends within its time-out or raises Unavailable."""

    async def profiles(self, card: GpuUuid) -> tuple[ProfileFacts, ...]:
        """Return the MIG profiles of the card; an unused card is put into MIG mode.

        Raises: Conflict when that can't be done now, with the reason; Unavailable.
        """

    async def instances(self, cards: Sequence[GpuUuid]) -> tuple[Instance, ...]:
        """All GPU instances of these cards. Raises: Unavailable."""

    async def make(self, card: GpuUuid, part: MigSlice) -> OwnInstance:
        """Make GPU and compute instance of that profile at that place.

        Raises: Conflict when there is no such profile or no room there; Unavailable.
        """

    async def destroy(self, instance: Instance) -> None:
        """Destroy a GPU instance and what is in it; gone already is as good.

        Raises: Conflict while a process uses it; Unavailable.
        """
