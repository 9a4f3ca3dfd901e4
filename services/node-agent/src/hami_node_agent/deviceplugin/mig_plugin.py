"""MIG instances as a resource of their own (`nvidia.com/mig-1g.10gb`, or the count resource).

The kubelet hands them out, without the scheduler's ledger, and a container gets what NVIDIA's
plugin answers. An instance is as well as its card.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from uuid import uuid4

from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

from hami_node_agent.deviceplugin.servicer import Advertised, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec, DeviceListPolicy, device_list
from hami_node_agent.devices.health import (
    Failure,
    Health,
    XidPolicy,
    after_bad_probe,
    after_good_probe,
    after_xid,
)
from hami_node_agent.devices.mig_layout import MigInstance
from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.grants.state import Signal


@dataclass(eq=False)
class MigCards:
    """Health of the cards in MIG mode, by the rules of all cards."""

    probe: DeviceProbe
    cards: frozenset[GpuUuid]
    _: KW_ONLY
    xids: XidPolicy
    probe_interval_s: float
    xid_quiet_s: float
    changed: Signal = field(default_factory=Signal, init=False)
    _health: dict[GpuUuid, Health] = field(init=False)

    def __post_init__(self) -> None:
        self._health = dict.fromkeys(self.cards, Health())

    def healthy(self, card: GpuUuid) -> bool:
        """Whether the card's instances may be used."""
        return self._health[card].healthy

    def on_xid(self, card: GpuUuid, xid: int) -> None:
        """The card reported an error; which of its instances is meant is not asked."""
        if self.xids.matters(xid):
            now = time.monotonic()
            self._set(card, after_xid(self._health[card], xid, now=now, quiet_s=self.xid_quiet_s))

    async def run(self) -> None:
        """Probes until cancelled."""
        await every(self.probe_interval_s, self._probe_all, name="MIG cards")

    async def _probe_all(self) -> None:
        try:
            failing = await self.probe.failing()
        except Unavailable as exc:
            failing = dict.fromkeys(self._health, Failure(reason=str(exc), certain=False))
        now = time.monotonic()
        for card, health in list(self._health.items()):
            if card in failing:
                self._set(card, after_bad_probe(health, failing[card]))
            else:
                self._set(card, after_good_probe(health, now=now))

    def _set(self, card: GpuUuid, health: Health) -> None:
        before, self._health[card] = self._health[card], health
        if before.healthy != health.healthy:
            self.changed.notify()


class MigPlugin(DevicePluginService):
    """The instances of one profile."""

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

    def devices(self) -> Iterator[Advertised]:
        """The instances, by uuid."""
        for each in self._instances:
            numa = each.numa if self._numa_topology else None
            yield Advertised(device_id=each.uuid, healthy=self._cards.healthy(each.card), numa=numa)

    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """NVIDIA's answer for these instances."""
        return [
            device_list(sorted(ids), response_id=str(uuid4()), policy=self._policy)
            for ids in requests
        ]
