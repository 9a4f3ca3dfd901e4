"""Calls of NVML that a driven program makes, with their structures as JSON."""

import ctypes
import re
from typing import Any

import pynvml

from tests.native.replies import reply

# Their first argument is a device, given by its index.
OF_A_DEVICE = re.compile(r"nvmlDevice(Get(?!Handle|Count)|OnSameBoard|Set|Reset)|nvmlGpmQuery")


def structure(value: Any) -> Any:
    if isinstance(value, ctypes.Union):  # nvmlValue_t: every number here is an unsigned one
        return value.ullVal
    if isinstance(value, ctypes.Structure):
        return {name: structure(getattr(value, name)) for name, *_ in value._fields_}
    if type(value).__name__ == "nvmlFriendlyObject":
        return {name: structure(item) for name, item in vars(value).items()}
    if isinstance(value, list | tuple | ctypes.Array) and not isinstance(value, bytes):
        return [structure(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def nvml(name: str, arguments: list[Any]) -> Any:
    pynvml.nvmlInit()
    try:
        values = list(arguments)
        if OF_A_DEVICE.match(name):
            values[0] = pynvml.nvmlDeviceGetHandleByIndex(values[0])
        return structure(getattr(pynvml, name)(*values))
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__}


def wait_event(index: int, timeout_ms: int) -> Any:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    reply("registered")
    try:
        data = pynvml.nvmlEventSetWait_v2(events, timeout_ms)
        return {"type": data.eventType, "data": data.eventData}
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__}
    finally:
        pynvml.nvmlEventSetFree(events)


def nvml_instance_codes(index: int, names: list[str]) -> dict[str, int]:
    """The codes that functions answer for the first instance of a device in MIG mode."""
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    library, room = pynvml.nvmlLib, (ctypes.c_uint64 * 16)()
    return {name: getattr(library, name)(device, room, room, room, room) for name in names}
