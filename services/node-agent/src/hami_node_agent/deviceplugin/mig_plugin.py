"""Device plugins of existing MIG instances (`nvidia.com/mig-1g.10gb`, or the count resource).

The kubelet hands them out, without the scheduler's ledger, and a container gets what NVIDIA's
plugin answers. An instance is as well as its card.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from uuid import uuid4

from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

from hami_node_agent.deviceplugin.servicer import AdvertisedDevice, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec, DeviceListPolicy, device_list
from hami_node_agent.devices.health import CardHealth, Failure, Health, XidPolicy
from hami_node_agent.devices.mig_partition import MigInstance
from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.grants.state import Signal


class MigCards:
    """Health of the cards in MIG mode."""

    def __init__(
        self,
        probe: DeviceProbe,
        cards: frozenset[GpuUuid],
        *,
        xids: XidPolicy,
        probe_interval_s: float,
        xid_quiet_s: float,
    ) -> None:
        self._probe = probe
        self._interval_s = probe_interval_s
        self.changed = Signal()
        notify = self.changed.notify
        self._health = CardHealth(xids, quiet_s=xid_quiet_s, on_change=lambda *_: notify())
        self._health.of |= dict.fromkeys(cards, Health())

    def healthy(self, card: GpuUuid) -> bool:
        """Return whether the card's instances may be used."""
        return self._health.of[card].healthy

    def on_xid(self, card: GpuUuid, xid: int) -> None:
        """Record an XID error of the card, which makes all its instances unhealthy."""
        self._health.after_xid(card, xid, now=time.monotonic())

    async def run(self) -> None:
        """Probe the cards until cancelled."""
        await every(self._interval_s, self._probe_all, name="MIG cards")

    async def _probe_all(self) -> None:
        try:
            failing = await self._probe.failing()
        except Unavailable as exc:
            failing = dict.fromkeys(self._health.of, Failure(reason=str(exc), certain=False))
        self._health.after_probe(failing, now=time.monotonic())


class MigPlugin(DevicePluginService):
    """Device plugin of one profile's instances."""

    def __init__(
        self,
        instances: Sequence[MigInstance],
        cards: MigCards,
        *,
        policy: DeviceListPolicy,
        numa_topology: bool,
    ) -> None:
        super().__init__(cards.changed)
        self._instances = instances
        self._cards = cards
        self._policy = policy
        self._numa_topology = numa_topology

    def devices(self) -> Iterator[AdvertisedDevice]:
        """Return the instances by uuid."""
        for each in self._instances:
            numa = each.numa if self._numa_topology else None
            yield AdvertisedDevice(
                device_id=each.uuid, healthy=self._cards.healthy(each.card), numa=numa
            )

    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """Answer Allocate as NVIDIA's plugin does for these instances."""
        return [
            device_list(sorted(ids), response_id=str(uuid4()), policy=self._policy)
            for ids in requests
        ]
