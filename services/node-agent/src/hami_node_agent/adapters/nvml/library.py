"""Call NVML in a thread with a time-out: list, watch and sample cards.

Input: `driver.py`, which blocks. Output: the port `DeviceProbe`. Rounds run one at a time; while
one hangs, no second thread calls the driver.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pynvml
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.events import DeviceSample

from hami_node_agent.adapters.nvml.driver import EVENT_WAIT_MS, NvmlDriver
from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.offer import CardFacts
from hami_node_agent.devices.processes import CardProcesses
from hami_node_agent.devices.topology import CardLinks

T = TypeVar("T")
TIMEOUT_S = 10.0
"""Time-out of one call: a driver that resets a card answers after seconds."""


class NvmlProbe:
    """Access to the node's cards through NVML."""

    def __init__(self, driver: NvmlDriver, *, timeout_s: float = TIMEOUT_S) -> None:
        self._driver = driver
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._busy: asyncio.Future[Any] | None = None
        self._event: asyncio.Future[tuple[GpuUuid | None, int] | None] | None = None
        # The driver is not reloaded under a thread that waits for its events.
        self._waiting = threading.Lock()

    async def start(self) -> None:
        """Load the driver. Raises: Unavailable if there is none."""
        await self._call("start", self._driver.start)

    async def stop(self) -> None:
        """Unload the driver."""
        await self._call("stop", self._driver.stop)

    async def watch_events(self) -> None:
        """Register for XID events, after `cards` and before `next_xid`. Raises: Unavailable."""
        await self._call("event registration", self._driver.register_events)

    async def cards(self) -> tuple[CardFacts, ...]:
        """Return all cards, by index. Raises: Unavailable."""
        return await self._call("discovery", self._driver.cards)

    async def links(self) -> tuple[CardLinks, ...]:
        """Return the links between cards, by index. Raises: Unavailable."""
        return await self._call("links", self._driver.links)

    async def reload(self) -> bool:
        """Initialise NVML again if the driver was reloaded, or cards were added or removed.

        True if it did.

        Raises: Unavailable while the driver is unavailable.
        """
        if not await self._call("look for changes", self._driver.is_outdated):
            return False
        await self._call("reload", self._reload)
        return True

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """Return cards that do not answer, or whose events can't be watched, with the reason."""
        return await self._call("probe", self._driver.probe)

    async def samples(self) -> tuple[DeviceSample, ...]:
        """Sample each card. Raises: Unavailable."""
        return await self._call("sample", self._driver.samples)

    async def processes(self) -> Mapping[str, CardProcesses]:
        """Read each card's processes, and their use since the last call.

        Raises: Unavailable.
        """
        return await self._call("processes", self._driver.processes)

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Wait about a second for an XID event.

        Raises: Unavailable when waiting itself fails: then no card's health is known.
        """
        if self._event is None or self._event.done():
            self._event = asyncio.ensure_future(asyncio.to_thread(self._wait_for_event))
        try:
            async with asyncio.timeout(self._timeout_s + EVENT_WAIT_MS / 1000):
                # A wait that outlives its caller is awaited again; no second one starts.
                return await asyncio.shield(self._event)
        except (pynvml.NVMLError, TimeoutError) as exc:
            raise Unavailable(f"NVML: waiting for events: {exc or 'no answer'}") from exc

    async def ask(self, what: str, function: Callable[[], T]) -> T:
        """Call another module's function with the driver, in turn with other calls.

        Raises: Unavailable, and the errors of `function`.
        """
        return await self._call(what, function)

    def _wait_for_event(self) -> tuple[GpuUuid | None, int] | None:
        with self._waiting:
            return self._driver.wait_for_event()

    def _reload(self) -> None:
        with self._waiting:
            self._driver.reload()

    async def _call(self, what: str, function: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                if self._busy is not None:
                    # The last round outlived its caller.
                    await asyncio.wait([self._busy])
                self._busy = asyncio.ensure_future(asyncio.to_thread(function))
                found: T = await asyncio.shield(self._busy)
        except TimeoutError as exc:
            raise Unavailable(f"NVML: {what}: no answer within {self._timeout_s:g} s") from exc
        except pynvml.NVMLError as exc:
            raise Unavailable(f"NVML: {what}: {exc}") from exc
        return found


@asynccontextmanager
async def open_nvml(
    *,
    sysfs_root: Path,
    fallback_memory_mib: int,
    is_mig_cut: bool = False,
) -> AsyncIterator[NvmlProbe]:
    """Yield NVML while the block runs; `is_mig_cut`: the caller puts cards into MIG mode.

    Raises: Unavailable when there is no driver.
    """
    driver = NvmlDriver(
        sysfs_root=sysfs_root, fallback_memory_mib=fallback_memory_mib, is_mig_cut=is_mig_cut
    )
    probe = NvmlProbe(driver)
    await probe.start()
    try:
        yield probe
    finally:
        await probe.stop()
