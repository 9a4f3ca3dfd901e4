"""Calls of NVML that a driven program makes, with their structures as JSON."""

import ctypes
from typing import Any

import pynvml

from tests.native.replies import say


def structure(value: Any) -> Any:
    if isinstance(value, ctypes.Structure):
        return {name: structure(getattr(value, name)) for name, *_ in value._fields_}
    if type(value).__name__ == "nvmlFriendlyObject":
        return {name: structure(item) for name, item in vars(value).items()}
    if isinstance(value, list | tuple | ctypes.Array) and not isinstance(value, bytes):
        return [structure(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def nvml(name: str, arguments: list[Any]) -> Any:
    pynvml.nvmlInit()
    takes_device = name.startswith("nvmlDeviceGet") and "Handle" not in name and "Count" not in name
    try:
        values = [
            pynvml.nvmlDeviceGetHandleByIndex(value) if takes_device and position == 0 else value
            for position, value in enumerate(arguments)
        ]
        return structure(getattr(pynvml, name)(*values))
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__}


def wait_event(index: int, timeout_ms: int) -> Any:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    say("registered")
    try:
        data = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
        return {"type": data.eventType, "data": data.eventData}
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__}
    finally:
        pynvml.nvmlEventSetFree(events)
