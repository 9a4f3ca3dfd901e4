"""Activity of one card and its links to others, by its NVML handle; blocking.

What the card can't report is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml
from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample

from hami_node_agent.devices.offer import CardFacts, product_type
from hami_node_agent.devices.processes import BusySample, CardProcesses, busy_shares
from hami_node_agent.devices.topology import MAX_NVLINKS, CardLinks

MIB = 1024 * 1024
TRIES = 3


def device_sample(facts: CardFacts, handle: Any) -> DeviceSample:
    """Memory, utilisation, temperature and power."""
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
    """Who has a context on the card, what of it, and computed since then; when the newest sample
    of the card ended, to be asked with the next time. Raises: NVMLError.

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
    """None where the card can't report it (MIG, some virtual cards)."""
    try:
        samples = _asked(handle, since_us)
    except pynvml.NVMLError as exc:
        idle = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return [] if exc.value in idle else None
    return [
        BusySample(pid=int(one.pid), percent=float(one.smUtil), end_us=int(one.timeStamp))
        for one in samples
    ]


def _asked(handle: Any, since_us: int) -> Any:
    """The binding asks how many processes there are, then for them: one may come in between."""
    for _ in range(TRIES - 1):
        try:
            return pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except pynvml.NVMLError as exc:
            if exc.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    return pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)


def optional(query: Callable[..., Any], handle: Any, *arguments: Any) -> Any:
    """The query's result, or None where the card (or the driver) does not know."""
    try:
        return query(handle, *arguments)
    except pynvml.NVMLError:
        return None


def text(value: Any) -> str:
    """NVML's strings are bytes in some versions of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_SWITCH = 2
"""NVML's device type of an NVSwitch at the other end of a link."""


def read_links(handles: Mapping[GpuUuid, Any]) -> tuple[CardLinks, ...]:
    """Of every card its way to the others; what the driver does not know is left out."""
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
    for link in _enabled(handle):
        pci = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        peer = None if pci is None else by_bus.get(text(pci.busId).lower())
        if peer is not None:
            straight[peer] += 1
        elif _leads_to_a_switch(handle, link):
            to_switches += 1
    return CardLinks(uuid=uuid, meetings=meetings, nvlinks=straight, switch_links=to_switches)


def _enabled(handle: Any) -> Iterator[int]:
    for link in range(MAX_NVLINKS):
        if optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            yield link


def _leads_to_a_switch(handle: Any, link: int) -> bool:
    kind = optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return kind is not None and int(kind) == _SWITCH


def _bus_id(handle: Any) -> str:
    pci = optional(pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if pci is None else text(pci.busId).lower()
