"""A probe that shows some cards not at all: HAMi's `filterdevices` (protocol 5.2).

Neither the kubelet nor the scheduler sees a hidden card; what happens to it is nobody's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.offer import CardFacts
from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.devices.processes import CardProcesses
from hami_node_agent.devices.topology import CardLinks


class FilteredProbe:
    """A `DeviceProbe` without the hidden cards."""

    def __init__(
        self,
        probe: DeviceProbe,
        hidden: Collection[str],
        *,
        on_hidden_xid: Callable[[GpuUuid, int], None] = lambda _card, _xid: None,
    ) -> None:
        """`hidden`: uuids and NVML indexes."""
        self._probe = probe
        self._hidden = frozenset(hidden)
        self._on_hidden_xid = on_hidden_xid
        self._hidden_uuids: frozenset[GpuUuid] = frozenset()

    async def cards(self) -> tuple[CardFacts, ...]:
        """See the port."""
        found = await self._probe.cards()
        self._hidden_uuids = frozenset(
            card.uuid for card in found if {card.uuid, str(card.index)} & self._hidden
        )
        return tuple(card for card in found if card.uuid not in self._hidden_uuids)

    async def links(self) -> tuple[CardLinks, ...]:
        """See the port."""
        found = await self._probe.links()
        return tuple(card for card in found if card.uuid not in self._hidden_uuids)

    async def reload(self) -> bool:
        """See the port."""
        return await self._probe.reload()

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """See the port."""
        failing = await self._probe.failing()
        return {uuid: why for uuid, why in failing.items() if uuid not in self._hidden_uuids}

    async def watch_events(self) -> None:
        """See the port."""
        await self._probe.watch_events()

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """See the port."""
        event = await self._probe.next_xid()
        if event is not None and event[0] is not None and event[0] in self._hidden_uuids:
            self._on_hidden_xid(event[0], event[1])
            return None
        return event

    async def samples(self) -> tuple[DeviceSample, ...]:
        """See the port."""
        samples = await self._probe.samples()
        return tuple(sample for sample in samples if sample.uuid not in self._hidden_uuids)

    async def processes(self) -> Mapping[str, CardProcesses]:
        """See the port."""
        found = await self._probe.processes()
        return {uuid: of for uuid, of in found.items() if uuid not in self._hidden_uuids}
