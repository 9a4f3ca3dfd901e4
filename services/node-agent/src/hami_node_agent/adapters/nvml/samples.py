"""What one card is doing, by its NVML handle. What the card can't report is None, never 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
from hamicommon.events import DeviceSample

from hami_node_agent.devices.offer import CardFacts, product_type
from hami_node_agent.devices.processes import CardProcesses

MIB = 1024 * 1024


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


def card_processes(handle: Any, since_us: int) -> CardProcesses:
    """Who has a context on the card, and computed since then. Raises: NVMLError."""
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return CardProcesses(
        pids=frozenset(int(process.pid) for process in running),
        busy_percent=_busy(handle, since_us),
    )


def _busy(handle: Any, since_us: int) -> dict[int, float] | None:
    """Percent by host pid; None where the card can't report it (MIG, some virtual cards)."""
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


def optional(query: Callable[..., Any], handle: Any, *arguments: Any) -> Any:
    """The query's result, or None where the card (or the driver) does not know."""
    try:
        return query(handle, *arguments)
    except pynvml.NVMLError:
        return None


def text(value: Any) -> str:
    """NVML's strings are bytes in some versions of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
