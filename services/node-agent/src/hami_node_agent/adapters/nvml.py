"""NVML behind a thread and a time-out: which cards, how they are, what they do.

In: NVML as the loader finds it (a real driver's, or fakegpu's through LD_LIBRARY_PATH). Out:
`CardFacts`, failure reasons, XID events and `DeviceSample`s with bytes turned into MiB where the
name says so. A query that the card does not support is None in samples, never 0.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pynvml
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.events import DeviceSample

from hami_node_agent.domain.cards import CardFacts, product_type
from hami_node_agent.domain.evidence import CardProcesses

logger = logging.getLogger(__name__)

T = TypeVar("T")
MIB = 1024 * 1024
# One wait for events; short, so that stopping is prompt and the thread is never away for long.
EVENT_WAIT_MS = 1000
LONGEST_LOOK_BACK_US = 5_000_000
_WANTED_EVENTS = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeSingleBitEccError
)
_UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


class NvmlProbe:
    """The node's cards through NVML."""

    def __init__(self, *, timeout_s: float, sysfs_root: Path, fallback_memory_mib: int) -> None:
        self._timeout_s = timeout_s
        self._sysfs_root = sysfs_root
        self._fallback_memory_mib = fallback_memory_mib
        self._event_set: Any = None
        self._unwatched: dict[GpuUuid, str] = {}
        self._known: dict[int, GpuUuid] = {}
        self._looked_at_us = 0
        self._by_handle: dict[int | None, GpuUuid] = {}
        self._turn = asyncio.Lock()
        self._busy: asyncio.Future[Any] | None = None

    async def start(self) -> None:
        """Loads the driver. Raises: Unavailable when there is none."""
        await self._call("start", pynvml.nvmlInit)

    async def stop(self) -> None:
        """Lets go of the driver."""
        await self._call("stop", pynvml.nvmlShutdown)

    async def watch_events(self) -> None:
        """Registers for XID events, after `cards`; must precede `next_xid`. Raises: Unavailable."""
        await self._call("event registration", self._register_events)

    async def cards(self) -> tuple[CardFacts, ...]:
        """All cards, by index. Raises: Unavailable."""
        return await self._call("discovery", self._read_cards)

    async def failing(self) -> Mapping[GpuUuid, str]:
        """Cards that do not answer, or whose events can't be watched, with the reason."""
        return await self._call("probe", self._probe)

    async def samples(self) -> tuple[DeviceSample, ...]:
        """What each card is doing now. Raises: Unavailable."""
        return await self._call("sample", self._sample)

    async def processes(self) -> Mapping[str, CardProcesses]:
        """Who has a context on each card, and computed since the last call. Raises: Unavailable."""
        return await self._call("processes", self._read_processes)

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Waits about a second for an XID event.

        Raises: Unavailable when waiting itself fails: then no card's health is known.
        """
        try:
            async with asyncio.timeout(self._timeout_s + EVENT_WAIT_MS / 1000):
                return await asyncio.to_thread(self._wait_for_event)
        except (pynvml.NVMLError, TimeoutError) as exc:
            raise Unavailable(f"NVML: waiting for events: {exc or 'no answer'}") from exc

    async def _call(self, what: str, function: Callable[[], T]) -> T:
        """One NVML round at a time, in a thread; while one hangs, no second thread is spent."""
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

    def _read_cards(self) -> tuple[CardFacts, ...]:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                facts = self._facts(index, handle)
            except pynvml.NVMLError as exc:
                logger.error("card left out", extra={"index": index, "error": str(exc)})
                continue
            if facts is not None:
                found.append(facts)
                self._known[index] = facts.uuid
                self._by_handle[_address(handle)] = facts.uuid
        return tuple(found)

    def _facts(self, index: int, handle: Any) -> CardFacts | None:
        memory_mib = self._memory_mib(handle)
        if memory_mib is None:
            logger.warning("card without readable memory size left out", extra={"index": index})
            return None
        return CardFacts(
            uuid=GpuUuid(_text(pynvml.nvmlDeviceGetUUID(handle))),
            index=index,
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=memory_mib,
            numa=self._numa(handle),
            minor=_optional(pynvml.nvmlDeviceGetMinorNumber, handle),
        )

    def _memory_mib(self, handle: Any) -> int | None:
        memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            return int(memory.total) // MIB
        # Cards that share the host's memory report none.
        return self._fallback_memory_mib or None

    def _numa(self, handle: Any) -> int:
        pci = _optional(pynvml.nvmlDeviceGetPciInfo, handle)
        if pci is None:
            return 0
        # NVML writes the domain with eight digits, sysfs with four.
        bus_id = _text(pci.busId).lower().removeprefix("0000")
        path = self._sysfs_root / "bus/pci/devices" / bus_id / "numa_node"
        try:
            return max(0, int(path.read_text().strip()))
        except (OSError, ValueError):
            return 0

    def _probe(self) -> dict[GpuUuid, str]:
        failing = dict(self._unwatched)
        for index, uuid in self._known.items():
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if _text(pynvml.nvmlDeviceGetUUID(handle)) != uuid:
                    failing[uuid] = "another card is in its place"
                pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError as exc:
                if exc.value not in _UNSUPPORTED:
                    failing[uuid] = str(exc)
        return failing

    def _register_events(self) -> None:
        self._unwatched.clear()
        self._event_set = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                pynvml.nvmlDeviceRegisterEvents(handle, _WANTED_EVENTS & supported, self._event_set)
            except pynvml.NVMLError as exc:
                uuid = self._known.get(index)
                if exc.value in _UNSUPPORTED:
                    logger.warning("card has no health events", extra={"uuid": uuid})
                elif uuid is not None:
                    self._unwatched[uuid] = f"health events can't be watched: {exc}"

    def _wait_for_event(self) -> tuple[GpuUuid | None, int] | None:
        try:
            event = pynvml.nvmlEventSetWait_v2(self._event_set, EVENT_WAIT_MS)
        except pynvml.NVMLError as exc:
            if exc.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        # By its handle: a card that fell off the bus can't be asked for its name any more.
        return self._by_handle.get(_address(event.device)), int(event.eventData)

    def _sample(self) -> tuple[DeviceSample, ...]:
        found = []
        for index, uuid in self._known.items():
            try:
                found.append(_sample(index, uuid, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as exc:
                logger.debug("card not sampled", extra={"uuid": uuid, "error": str(exc)})
        return tuple(found)

    def _read_processes(self) -> dict[str, CardProcesses]:
        now_us = time.time_ns() // 1000
        # After a pause what was long ago does not count as the present.
        since_us = max(self._looked_at_us, now_us - LONGEST_LOOK_BACK_US)
        found: dict[str, CardProcesses] = {}
        for index, uuid in self._known.items():
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError as exc:
                logger.debug("processes not read", extra={"uuid": uuid, "error": str(exc)})
                continue
            found[uuid] = CardProcesses(
                pids=frozenset(int(process.pid) for process in running),
                busy_percent=_busy(handle, since_us),
            )
        self._looked_at_us = now_us
        return found


def _busy(handle: Any, since_us: int) -> dict[int, float] | None:
    """Percent by host pid; None where the card can't say (MIG, some virtual cards)."""
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as exc:
        idle = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return {} if exc.value in idle else None
    newest: dict[int, Any] = {}
    for sample in samples:
        known = newest.get(sample.pid)
        if known is None or sample.timeStamp >= known.timeStamp:
            newest[int(sample.pid)] = sample
    return {pid: float(sample.smUtil) for pid, sample in newest.items() if sample.smUtil <= 100}


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _sample(index: int, uuid: GpuUuid, handle: Any) -> DeviceSample:
    name = _text(pynvml.nvmlDeviceGetName(handle))
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _optional(pynvml.nvmlDeviceGetPowerUsage, handle)
    celsius = _optional(
        lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU), handle
    )
    return DeviceSample(
        uuid=uuid,
        index=index,
        type=product_type(name),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        gpu_percent=None if busy is None else float(busy.gpu),
        memory_controller_percent=None if busy is None else float(busy.memory),
        temperature_celsius=None if celsius is None else float(celsius),
        power_watts=None if milliwatts is None else milliwatts / 1000,
    )


def _optional(query: Callable[[Any], Any], handle: Any) -> Any:
    """The query's result, or None where the card (or the driver) does not know."""
    try:
        return query(handle)
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@asynccontextmanager
async def open_nvml(
    *, timeout_s: float, sysfs_root: Path, fallback_memory_mib: int
) -> AsyncIterator[NvmlProbe]:
    """NVML while the block runs. Raises: Unavailable when there is no driver."""
    probe = NvmlProbe(
        timeout_s=timeout_s, sysfs_root=sysfs_root, fallback_memory_mib=fallback_memory_mib
    )
    await probe.start()
    try:
        yield probe
    finally:
        await probe.stop()
