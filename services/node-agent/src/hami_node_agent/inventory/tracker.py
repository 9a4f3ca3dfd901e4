"""Track the node's cards and their health, for ListAndWatch, inventory and annotation.

Input: NVML through the `DeviceProbe` port. Output: `CardTracker.devices()` and a signal on every
change. Health changes both ways; unknown counts as unhealthy. A new card is offered, a removed one
is unhealthy, also across a reload of the driver.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

from hami_node_agent.devices.health import CardHealth, Failure, Health, HealthCause, XidPolicy
from hami_node_agent.devices.offer import CardFacts, Offer, offered_device, with_health
from hami_node_agent.devices.ports import DeviceProbe
from hami_node_agent.devices.topology import contradictions, pair_scores
from hami_node_agent.grants.state import NodeState, Signal

logger = logging.getLogger(__name__)


class CardTracker:
    """Cards that this node offers now."""

    def __init__(
        self,
        probe: DeviceProbe,
        state: NodeState,
        *,
        offer: Offer,
        xids: XidPolicy,
        probe_interval_s: float,
        xid_quiet_s: float,
        on_found: Callable[[Iterable[CardFacts]], None] = lambda _facts: None,
    ) -> None:
        """`on_found` is called with the driver's cards whenever they were read."""
        self._probe = probe
        self._state = state
        self._offer = offer
        self._interval_s = probe_interval_s
        self._on_found = on_found
        self._devices: dict[GpuUuid, GpuDevice] = {}
        self._health = CardHealth(xids, quiet_s=xid_quiet_s, on_change=self._on_change)
        self.pair_scores: dict[GpuUuid, dict[GpuUuid, int]] = {}
        """Nearness of the cards to each other, by index; empty if the driver reports none."""
        self.contradictions: tuple[tuple[GpuUuid, GpuUuid], ...] = ()
        """Pairs of cards that do not see the same NVLinks from both ends."""
        self.xids_seen: Counter[tuple[str, int, bool]] = Counter()
        """XID events since the start by card (empty: unknown), code, and whether they counted."""
        self.health_changes: Counter[tuple[str, HealthCause]] = Counter()
        """Changes of each card's health since the start, by cause."""
        self.changed = Signal()

    async def discover(self) -> None:
        """Read the cards, all healthy until a probe or an XID shows otherwise.

        Raises: Unavailable.
        """
        await self._take_in()
        await self._probe.watch_events()

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return all cards by index, with their health."""
        filled = (with_health(d, self._health.of[uuid]) for uuid, d in self._devices.items())
        return tuple(sorted(filled, key=lambda device: (device.index, device.uuid)))

    async def run(self) -> None:
        """Probe the cards and read XID events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            probing = every(self._interval_s, self.probe, name="probe")
            tasks.create_task(probing, name="probe")
            if self._health.xids.any_matters:
                tasks.create_task(self._listen(), name="xids")

    async def _take_in(self) -> None:
        """Read the driver's cards; those that it lost stay, and fail their probes."""
        before = dict(self._devices)
        found = await self._probe.cards()
        self._on_found(found)
        for facts in found:
            self._devices[facts.uuid] = offered_device(facts, self._offer)
            self._health.of.setdefault(facts.uuid, Health())
        if self._devices != before:
            try:
                links = await self._probe.links()
                self.pair_scores = pair_scores(links)
                self.contradictions = contradictions(links)
            except Unavailable as exc:
                logger.warning("Failed to read the links of cards", extra={"error": str(exc)})
            self._publish()

    async def probe(self) -> None:
        """Find added and removed cards, then check the health of every card."""
        failing: Mapping[GpuUuid, Failure]
        try:
            if await self._probe.reload():
                await self._take_in()
            failing = await self._probe.failing()
        except Unavailable as exc:
            failing = dict.fromkeys(self._devices, Failure(reason=str(exc), certain=False))
        self._health.after_probe(failing, now=time.monotonic())

    async def _listen(self) -> None:
        while True:
            try:
                event = await self._probe.next_xid()
            except Unavailable as exc:
                logger.error("Failed to read health events", extra={"error": str(exc)})
                # Certain, though the cards may answer: their errors would go unnoticed.
                lost = Failure(reason=str(exc), certain=True)
                self._health.after_probe(dict.fromkeys(self._devices, lost), now=time.monotonic())
                await asyncio.sleep(self._interval_s)
                continue
            if event is not None:
                self.on_xid(*event)

    def on_xid(self, uuid: GpuUuid | None, xid: int) -> None:
        """Handle an error from the driver; one without a known uuid counts for every card."""
        matters = self._health.after_xid(uuid, xid, now=time.monotonic())
        self.xids_seen[uuid or "", xid, matters] += 1
        logger.warning("Received an XID event", extra={"uuid": uuid, "xid": xid, "counts": matters})

    def _on_change(self, uuid: GpuUuid, before: Health, health: Health, cause: HealthCause) -> None:
        if before.healthy != health.healthy:
            self.health_changes[uuid, cause] += 1
        logger.warning(
            "Marked a card healthy" if health.healthy else "Marked a card unhealthy",
            extra={"uuid": uuid, "reason": health.reason or before.reason},
        )
        self._publish()

    def _publish(self) -> None:
        self._state.cards = {device.uuid: device for device in self.devices()}
        self.changed.notify()
