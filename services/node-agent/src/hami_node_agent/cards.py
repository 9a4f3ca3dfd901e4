"""The node's cards and their health, followed by ListAndWatch, inventory and the node annotation.

In: NVML through the `DeviceProbe` port. Out: `Cards.devices()` and a signal on every change.
Health changes both ways; what can't be known counts as sick.
"""

from __future__ import annotations

import asyncio
import logging
import time

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable

from hami_node_agent.domain.cards import Offer, offered, with_health
from hami_node_agent.domain.health import (
    Health,
    XidPolicy,
    after_bad_probe,
    after_good_probe,
    after_xid,
)
from hami_node_agent.node_state import NodeState, Signal
from hami_node_agent.ports import DeviceProbe

logger = logging.getLogger(__name__)


class Cards:
    """What this node offers now."""

    def __init__(
        self,
        probe: DeviceProbe,
        state: NodeState,
        *,
        offer: Offer,
        xids: XidPolicy,
        probe_interval_s: float,
        xid_quiet_s: float,
    ) -> None:
        self._probe = probe
        self._state = state
        self._offer = offer
        self._xids = xids
        self._interval_s = probe_interval_s
        self._quiet_s = xid_quiet_s
        self._devices: dict[GpuUuid, GpuDevice] = {}
        self._health: dict[GpuUuid, Health] = {}
        self.changed = Signal()

    async def discover(self) -> None:
        """Reads the cards; they are healthy until told otherwise. Raises: Unavailable."""
        for facts in await self._probe.cards():
            self._devices[facts.uuid] = offered(facts, self._offer)
            self._health[facts.uuid] = Health()
        await self._probe.watch_events()
        self._publish()

    def devices(self) -> tuple[GpuDevice, ...]:
        """All cards by index, with their health."""
        filled = (with_health(d, self._health[uuid]) for uuid, d in self._devices.items())
        return tuple(sorted(filled, key=lambda device: device.index))

    async def run(self) -> None:
        """Probes and listens for XID events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe_all(), name="probe")
            if not self._xids.all_disabled or self._xids.all_enabled:
                tasks.create_task(self._listen(), name="xids")

    async def _probe_all(self) -> None:
        while True:
            try:
                failing = await self._probe.failing()
            except Unavailable as exc:
                failing = dict.fromkeys(self._devices, str(exc))
            now = time.monotonic()
            for uuid, health in list(self._health.items()):
                if uuid in failing:
                    self._set(uuid, after_bad_probe(health, failing[uuid]))
                else:
                    self._set(uuid, after_good_probe(health, now=now))
            await asyncio.sleep(self._interval_s)

    async def _listen(self) -> None:
        while True:
            try:
                event = await self._probe.next_xid()
            except Unavailable as exc:
                logger.error("health events lost", extra={"error": str(exc)})
                for uuid, health in list(self._health.items()):
                    self._set(uuid, after_bad_probe(health, str(exc)))
                await asyncio.sleep(self._interval_s)
                continue
            if event is None or not self._xids.matters(event[1]):
                continue
            # An event that names no card of ours may be any card's.
            uuids = [event[0]] if event[0] in self._health else list(self._health)
            for uuid in uuids:
                if uuid is not None:
                    self._on_xid(uuid, event[1])

    def _on_xid(self, uuid: GpuUuid, xid: int) -> None:
        now = time.monotonic()
        self._set(uuid, after_xid(self._health[uuid], xid, now=now, quiet_s=self._quiet_s))

    def _set(self, uuid: GpuUuid, health: Health) -> None:
        before = self._health[uuid]
        self._health[uuid] = health
        if (before.healthy, before.reason) != (health.healthy, health.reason):
            logger.warning(
                "card is well again" if health.healthy else "card is sick",
                extra={"uuid": uuid, "reason": health.reason or before.reason},
            )
            self._publish()

    def _publish(self) -> None:
        self._state.cards = {device.uuid: device for device in self.devices()}
        self.changed.notify()
