"""A driver whose cards a test changes, and a tracker of its cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_node_agent.devices.health import Failure, XidPolicy
from hami_node_agent.devices.offer import CardFacts, Offer
from hami_node_agent.devices.topology import CardLinks
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.state import NodeState
from hami_node_agent.inventory.tracker import CardTracker
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def facts(uuid: GpuUuid, index: int) -> CardFacts:
    return CardFacts(uuid=uuid, index=index, name="A10", memory_mib=1000)


class Driver:
    """Two cards without links at first."""

    def __init__(self) -> None:
        self.listed: tuple[CardFacts, ...] = (facts(A, 0), facts(B, 1))
        self.linked: tuple[CardLinks, ...] = ()
        self.broken: dict[GpuUuid, Failure] = {}
        self.changed = False
        self.away = False

    async def cards(self) -> tuple[CardFacts, ...]:
        return self.listed

    async def links(self) -> tuple[CardLinks, ...]:
        return self.linked

    async def reload(self) -> bool:
        if self.away:
            raise Unavailable("NVML: reload: Driver Not Loaded")
        changed, self.changed = self.changed, False
        return changed

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        return self.broken

    async def watch_events(self) -> None:
        return None

    async def next_xid(self) -> None:
        return None

    async def samples(self) -> tuple[Any, ...]:
        return ()

    async def processes(self) -> Mapping[str, Any]:
        return {}


class Store:
    """Nothing is to be saved."""

    def save(self, state: AgentState) -> None:
        raise AssertionError


async def tracker_of(driver: Driver, *, xid_quiet_s: float = 0, **more: Any) -> CardTracker:
    """The tracker, which knows the driver's cards."""
    made = CardTracker(
        driver,
        NodeState(Store(), AgentState()),
        offer=Offer(),
        xids=XidPolicy(),
        probe_interval_s=60,
        xid_quiet_s=xid_quiet_s,
        **more,
    )
    await made.discover()
    return made
