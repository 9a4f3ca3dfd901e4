"""Read cards from the driver through NVML; blocking, called in a thread by `library.py`.

Input: NVML as the loader finds it (a real driver's, or fakegpu's through LD_LIBRARY_PATH). Output:
`CardFacts`, failures, XID events, samples, links. Cards are addressed by uuid: an index changes
when a card before it disappears. A value that a card can't report is None, never 0.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
from hamicommon.domain.granted_cards import IN_MIG_MODE
from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.offer import CardFacts, product_type
from hami_node_agent.devices.processes import BusySample, CardProcesses, busy_shares
from hami_node_agent.devices.topology import MAX_NVLINKS, CardLinks

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
TRIES = 3


def device_sample(facts: CardFacts, handle: Any) -> DeviceSample:
    """Read memory, utilisation, temperature and power of a card."""
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = optional(pynvml.nvmlDeviceGetPowerUsage, handle)
    celsius = optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    return DeviceSample(
        uuid=facts.uuid,
        index=facts.index,
        type=product_type(facts.name),
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        gpu_percent=None if busy is None else float(busy.gpu),
        memory_controller_percent=None if busy is None else float(busy.memory),
        temperature_celsius=None if celsius is None else float(celsius),
        power_watts=None if milliwatts is None else milliwatts / 1000,
    )


def card_processes(handle: Any, *, since_us: int, now_us: int) -> tuple[CardProcesses, int]:
    """Read the processes with a context on the card, their memory, and their use since `since_us`.

    Also returns when the card's newest sample ended, for the next call. Raises: NVMLError.

    A process may be in several of the driver's lists; they all show the same memory.
    """
    held_mib: dict[int, int | None] = {}
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        _add(held_mib, process)
    for query in (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in optional(query, handle) or ():
            _add(held_mib, process)
    samples = _busy(handle, since_us)
    shares, seen_us = busy_shares(samples or (), since_us=since_us, now_us=now_us)
    busy = None if samples is None else shares
    return CardProcesses(pids=frozenset(held_mib), busy_percent=busy, held_mib=held_mib), seen_us


def _add(held_mib: dict[int, int | None], process: Any) -> None:
    pid, known_bytes = int(process.pid), process.usedGpuMemory
    if known_bytes is None:
        held_mib.setdefault(pid, None)
    else:
        held_mib[pid] = max(int(known_bytes) // MIB, held_mib.get(pid) or 0)


def _busy(handle: Any, since_us: int) -> list[BusySample] | None:
    """Return how busy the card was; None if it can't report that (MIG, some virtual cards)."""
    try:
        samples = _query_samples(handle, since_us)
    except pynvml.NVMLError as exc:
        idle = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return [] if exc.value in idle else None
    return [
        BusySample(pid=int(one.pid), percent=float(one.smUtil), end_us=int(one.timeStamp))
        for one in samples
    ]


def _query_samples(handle: Any, since_us: int) -> Any:
    """Read samples, again if a process came between NVML's count and its list."""
    for _ in range(TRIES - 1):
        try:
            return pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except pynvml.NVMLError as exc:
            if exc.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    return pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)


def optional(query: Callable[..., Any], handle: Any, *arguments: Any) -> Any:
    """Return the query's result, or None if card or driver do not support it."""
    try:
        return query(handle, *arguments)
    except pynvml.NVMLError:
        return None


def text(value: Any) -> str:
    """Decode a string of NVML, which is bytes in some versions of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_SWITCH = 2
"""NVML's device type of an NVSwitch at the other end of a link."""


def read_links(handles: Mapping[GpuUuid, Any]) -> tuple[CardLinks, ...]:
    """Read the links between cards; those that the driver does not know are left out."""
    by_bus = {_bus_id(handle): uuid for uuid, handle in handles.items()}
    return tuple(_links(uuid, handle, handles, by_bus) for uuid, handle in handles.items())


def _links(
    uuid: GpuUuid, handle: Any, handles: Mapping[GpuUuid, Any], by_bus: Mapping[str, GpuUuid]
) -> CardLinks:
    meetings: dict[GpuUuid, int] = {}
    for other, its_handle in handles.items():
        if other != uuid:
            level = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, its_handle)
            if level is not None:
                meetings[other] = int(level)
    straight: Counter[GpuUuid] = Counter()
    to_switches = 0
    for link in _enabled_links(handle):
        pci = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        peer = None if pci is None else by_bus.get(text(pci.busId).lower())
        if peer is not None:
            straight[peer] += 1
        elif _leads_to_a_switch(handle, link):
            to_switches += 1
    return CardLinks(uuid=uuid, meetings=meetings, nvlinks=straight, switch_links=to_switches)


def _enabled_links(handle: Any) -> Iterator[int]:
    for link in range(MAX_NVLINKS):
        if optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            yield link


def _leads_to_a_switch(handle: Any, link: int) -> bool:
    kind = optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return kind is not None and int(kind) == _SWITCH


def _bus_id(handle: Any) -> str:
    pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if pci is None else text(pci.busId).lower()


# One wait for events; short, so that stopping is prompt and the thread is never away for long.
EVENT_WAIT_MS = 1000
LONGEST_LOOK_BACK_US = 5_000_000
_WANTED_EVENTS = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeSingleBitEccError
)
_UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
# Errors of a card that is certainly unusable.
_CERTAIN = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_IRQ_ISSUE,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER,
)
# Errors after the driver was unloaded or reloaded under this process.
_RELOADED = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


class NvmlDriver:
    """Driver through NVML; all methods block and may raise NVMLError."""

    def __init__(
        self, *, sysfs_root: Path, fallback_memory_mib: int, is_mig_cut: bool = False
    ) -> None:
        """`is_mig_cut`: whether this process puts cards into MIG mode."""
        self._is_mig_cut = is_mig_cut
        self._in_slices: set[GpuUuid] = set()
        """Cards that were not in MIG mode when they were found."""
        self._sysfs_root = sysfs_root
        self._fallback_memory_mib = fallback_memory_mib
        self._event_set: Any = None
        self._unwatched: dict[GpuUuid, str] = {}
        self._known: dict[GpuUuid, CardFacts] = {}
        self._by_handle: dict[int | None, GpuUuid] = {}
        self._seen_us: dict[GpuUuid, int] = {}
        """When the newest sample of each card's processes ended that was seen."""
        self._attached = self._attached_cards()

    def start(self) -> None:
        """Load the driver."""
        self._attached = self._attached_cards()
        pynvml.nvmlInit()

    def stop(self) -> None:
        """Unload the driver."""
        pynvml.nvmlShutdown()

    def is_outdated(self) -> bool:
        """Return whether the driver was reloaded, or cards were added or removed.

        Then NVML must be initialised again.
        """
        if self._attached_cards() != self._attached:
            return True
        try:
            pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as exc:
            return exc.value in _RELOADED
        return False

    def reload(self) -> None:
        """Initialise NVML again; removed cards stay known, so that they count as unhealthy."""
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as exc:
            logger.debug("Failed to shut down NVML", extra={"error": str(exc)})
        self.start()
        self._by_handle.clear()
        self.cards()
        self.register_events()
        logger.warning(
            "Reloading NVML: the driver was reloaded", extra={"cards": len(self._by_handle)}
        )

    def cards(self) -> tuple[CardFacts, ...]:
        """Return all cards, by index."""
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                facts = self._facts(index, handle)
            except pynvml.NVMLError as exc:
                logger.error("Ignoring a card", extra={"index": index, "error": str(exc)})
                continue
            if facts is not None:
                found.append(facts)
                if facts.uuid not in self._known and not _in_mig_mode(handle):
                    self._in_slices.add(facts.uuid)
                self._known[facts.uuid] = facts
                self._by_handle[_address(handle)] = facts.uuid
        return tuple(found)

    def links(self) -> tuple[CardLinks, ...]:
        """Return the links between cards, by index."""
        ordered = sorted(self._by_handle.values(), key=lambda uuid: self._known[uuid].index)
        return read_links({uuid: _handle(uuid) for uuid in ordered})

    def _facts(self, index: int, handle: Any) -> CardFacts | None:
        memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        # Cards that share the host's memory report none.
        memory_mib = self._fallback_memory_mib if memory is None else int(memory.total) // MIB
        if not memory_mib:
            logger.warning("Ignoring a card without readable memory size", extra={"index": index})
            return None
        return CardFacts(
            uuid=GpuUuid(text(pynvml.nvmlDeviceGetUUID(handle))),
            index=index,
            name=text(pynvml.nvmlDeviceGetName(handle)),
            memory_mib=memory_mib,
            numa=self._numa(handle),
            minor=optional(pynvml.nvmlDeviceGetMinorNumber, handle),
        )

    def _numa(self, handle: Any) -> int:
        """Return the NUMA node from sysfs, as HAMi does, or from NVML if sysfs lacks the card."""
        pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
        if pci is None:
            return 0
        # NVML writes the domain with eight digits, sysfs with four.
        bus_id = text(pci.busId).lower().removeprefix("0000")
        path = self._sysfs_root / "bus/pci/devices" / bus_id / "numa_node"
        try:
            return max(0, int(path.read_text().strip()))
        except (OSError, ValueError):
            scope = pynvml.NVML_AFFINITY_SCOPE_NODE
            nodes = optional(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, scope)
            mask = int(nodes[0]) if nodes else 0
            return max(0, (mask & -mask).bit_length() - 1)

    def _attached_cards(self) -> frozenset[str]:
        """Return the bus ids of present cards without NVML, which knows only those of its start.

        Nothing where sysfs has no such folder.
        """
        folder = self._sysfs_root / "bus/pci/drivers/nvidia"
        try:
            return frozenset(entry.name for entry in folder.iterdir() if ":" in entry.name)
        except OSError:
            return frozenset()

    def probe(self) -> dict[GpuUuid, Failure]:
        """Return cards that do not answer, entered MIG mode, or whose events can't be watched."""
        failing = {
            uuid: Failure(reason=reason, certain=True) for uuid, reason in self._unwatched.items()
        }
        for uuid in self._known:
            try:
                handle = _handle(uuid)
                if not self._is_mig_cut and uuid in self._in_slices and _in_mig_mode(handle):
                    failing[uuid] = Failure(reason=IN_MIG_MODE, certain=True)
                pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError as exc:
                if exc.value not in _UNSUPPORTED:
                    failing[uuid] = Failure(reason=str(exc), certain=exc.value in _CERTAIN)
        return failing

    def register_events(self) -> None:
        """Register all cards for events, replacing the earlier registration."""
        self._unwatched.clear()
        if self._event_set is not None:
            optional(pynvml.nvmlEventSetFree, self._event_set)
        self._event_set = pynvml.nvmlEventSetCreate()
        for uuid in self._by_handle.values():
            try:
                handle = _handle(uuid)
                supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                pynvml.nvmlDeviceRegisterEvents(handle, _WANTED_EVENTS & supported, self._event_set)
            except pynvml.NVMLError as exc:
                if exc.value in _UNSUPPORTED:
                    logger.warning(
                        "Failed to register for health events of a card", extra={"uuid": uuid}
                    )
                else:
                    self._unwatched[uuid] = f"health events can't be watched: {exc}"

    def wait_for_event(self) -> tuple[GpuUuid | None, int] | None:
        """Return the next XID event, None after `EVENT_WAIT_MS`.

        Uuid None: any card may be meant.
        """
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

    def samples(self) -> tuple[DeviceSample, ...]:
        """Sample each card; cards that don't answer are left out."""
        found = []
        for uuid, facts in self._known.items():
            try:
                found.append(device_sample(facts, _handle(uuid)))
            except pynvml.NVMLError as exc:
                logger.debug("Failed to sample a card", extra={"uuid": uuid, "error": str(exc)})
        return tuple(found)

    def processes(self) -> dict[str, CardProcesses]:
        """Read each card's processes, and their use since the last call."""
        now_us = time.time_ns() // 1000
        found: dict[str, CardProcesses] = {}
        for uuid in self._known:
            # After a pause old samples do not count as the present.
            since_us = max(self._seen_us.get(uuid, 0), now_us - LONGEST_LOOK_BACK_US)
            try:
                found[uuid], self._seen_us[uuid] = card_processes(
                    _handle(uuid), since_us=since_us, now_us=now_us
                )
            except pynvml.NVMLError as exc:
                logger.debug("Failed to read processes", extra={"uuid": uuid, "error": str(exc)})
        return found


def _in_mig_mode(handle: Any) -> bool:
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and bool(mode[0])


def _handle(uuid: GpuUuid) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
