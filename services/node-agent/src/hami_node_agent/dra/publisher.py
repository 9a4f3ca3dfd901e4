"""Publish the node's cards as a ResourceSlice, reduced by what the device plugin has granted.

The kubelet deletes our slices when it starts and 30 s after our socket is gone; the watch shows it
and they are written again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass, field

from hamicommon.errors import HamiError
from hamicommon.process.backoff import Backoff

from hami_node_agent.adapters.kubernetes.resource_api import ResourceSlices
from hami_node_agent.dra.slices import offered_devices, slice_name, wanted_slice
from hami_node_agent.grants.state import NodeState, Signal
from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

# Grants come in bursts: one write for all of a moment.
SETTLE_S = 0.5
RETRY_FIRST_S = 0.5
RETRY_LAST_S = 30.0


@dataclass(eq=False)
class SlicePublisher:
    """Publisher of one node's ResourceSlices."""

    store: ResourceSlices
    cards: CardTracker
    state: NodeState
    _: KW_ONLY
    node: str
    _registered: bool = field(default=False, init=False)
    _changed: Signal = field(default_factory=Signal, init=False)
    published: bool = field(default=False, init=False)

    def on_registered(self) -> None:
        """Publish from now on, because the kubelet knows the driver."""
        self._registered = True
        self._changed.notify()

    async def run(self) -> None:
        """Publish the node's ResourceSlices until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.store.run(self._changed.notify), name="slices-watch")
            tasks.create_task(self._pass_on(self.cards.changed), name="slices-cards")
            tasks.create_task(self._pass_on(self.state.book_changed), name="slices-grants")
            tasks.create_task(self._keep(), name="slices")

    async def _pass_on(self, signal: Signal) -> None:
        seen = signal.version
        while True:
            seen = await signal.wait(seen)
            self._changed.notify()

    async def _keep(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            seen = self._changed.version
            wait_s: float | None = None
            try:
                if self._registered and self.store.synced:
                    await self._write()
                backoff.reset()
            except HamiError as exc:
                wait_s = backoff.next_s()
                logger.warning(
                    "Retrying to write a ResourceSlice",
                    extra={"error": str(exc), "retry_s": wait_s},
                )
            await self._changed.wait(seen, wait_s)
            await asyncio.sleep(SETTLE_S)

    async def _write(self) -> None:
        grants = self.state.book.grants.values()
        devices = offered_devices(self.cards.devices(), grants)
        now = self.store.slices.get(slice_name(self.node))
        body = wanted_slice(self.node, await self.store.node_uid(), devices, now)
        if body is not None:
            await self.store.write(body)
            logger.info(
                "Wrote a ResourceSlice",
                extra={"devices": len(devices), "generation": body["spec"]["pool"]["generation"]},
            )
        self.published = True


async def withdraw(store: ResourceSlices, node: str) -> None:
    """Delete the slices of an earlier agent, if claims can't be prepared any more."""
    backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
    while True:
        try:
            await store.remove(slice_name(node))
        except HamiError as exc:
            logger.warning("Retrying to remove a ResourceSlice", extra={"error": str(exc)})
            await asyncio.sleep(backoff.next_s())
        else:
            return
