"""A program that uses the CUDA driver and NVML: a call per line of JSON, an answer per line.

Run by the `Client` of machine.py in a separate process. It looks functions up with dlsym (ctypes)
or with cuGetProcAddress.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.native.allocators.allocation import RefusedError
from tests.native.allocators.allocators import KINDS, GiveBack
from tests.native.allocators.context_makers import KINDS as CONTEXTS
from tests.native.allocators.context_makers import OUTLIVED
from tests.native.compute.launch_calls import (
    launch,
    launch_as_before_cuda_4,
    launch_cooperatively,
    launch_on_both,
)
from tests.native.descriptors import close_descriptors, files_open
from tests.native.nvml.nvml_calls import (
    nvml,
    nvml_instance_codes,
    wait_event,
)
from tests.native.replies import reply

cuda = ctypes.CDLL("libcuda.so.1")
contexts: dict[int, ctypes.c_void_p] = {}
POISON = 0xDEAD


def open_device(ordinal: int = 0) -> dict[str, Any]:
    result = cuda.cuInit(0)
    if result == 0:
        contexts[ordinal] = context = ctypes.c_void_p()
        result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
    if result == 0:
        result = cuda.cuCtxSetCurrent(contexts[ordinal])
    return {"result": result}


def proc(name: str, version: int = 12080, flags: int = 0) -> Any:
    """The function that cuGetProcAddress_v2 answers, as the CUDA runtime finds it."""
    address = ctypes.c_void_p()
    status = ctypes.c_int()
    result = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    assert result == 0, (name, version, flags, result)
    return ctypes.CFUNCTYPE(ctypes.c_int)(address.value or 0)


def alloc(bytes: int, how: str = "alloc", proc_address: bool = False) -> dict[str, Any]:
    pointer = ctypes.c_uint64(POISON)
    at, size = ctypes.byref(pointer), ctypes.c_size_t(bytes)
    if how == "alloc":
        function = proc("cuMemAlloc") if proc_address else cuda.cuMemAlloc_v2
        result = function(at, size)
    elif how == "managed":
        result = cuda.cuMemAllocManaged(at, size, 1)
    elif how == "pitch":
        pitch = ctypes.c_size_t()
        result = cuda.cuMemAllocPitch_v2(
            at, ctypes.byref(pitch), ctypes.c_size_t(100), ctypes.c_size_t(bytes // 512), 4
        )
    elif how in ("async", "async_ptsz"):
        suffix = how.removeprefix("async")
        function = proc("cuMemAllocAsync", 12080, 2 if suffix else 0)
        result = function(at, size, ctypes.c_void_p(0))
    elif how == "pool":
        pool = ctypes.c_void_p()
        cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
        result = cuda.cuMemAllocFromPoolAsync(at, size, pool, ctypes.c_void_p(0))
    else:
        # CUmemAllocationProp: type pinned (1), no handle types, location device (1) 0
        properties = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
        result = cuda.cuMemCreate(at, size, properties, ctypes.c_uint64(0))
    return {"result": result, "pointer": pointer.value}


def create(bytes: int, place: int, ordinal: int) -> dict[str, Any]:
    """Physical memory at a place: 1 a device, 2 the host; no context is needed for it."""
    handle = ctypes.c_uint64(POISON)
    properties = (ctypes.c_int * 8)(1, 0, place, ordinal, 0, 0, 0, 0)
    result = cuda.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(bytes), properties, ctypes.c_uint64(0)
    )
    return {"result": result, "pointer": handle.value}


def init() -> dict[str, Any]:
    return {"result": cuda.cuInit(0)}


def free(pointer: int, how: str = "free") -> dict[str, Any]:
    address = ctypes.c_uint64(pointer)
    if how == "async":
        return {"result": cuda.cuMemFreeAsync(address, ctypes.c_void_p(0))}
    return {"result": (cuda.cuMemRelease if how == "create" else cuda.cuMemFree_v2)(address)}


holdings: dict[int, GiveBack] = {}


def take(kind: str, bytes: int) -> dict[str, Any]:
    """Allocate memory in one of the ways of allocators.py; the token frees it."""
    result, give_back = KINDS[kind].take(bytes)
    token = len(holdings)
    if give_back is not None:
        holdings[token] = give_back
    return {"result": result, "token": token}


def give_back(token: int) -> dict[str, Any]:
    return {"result": holdings[token]()}


def synchronize() -> dict[str, Any]:
    """Wait for the device; only then does memory freed in streams return to its pool."""
    return {"result": cuda.cuCtxSynchronize()}


def info(nulls: bool = False) -> dict[str, Any]:
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    if nulls:
        return {"result": cuda.cuMemGetInfo_v2(None, None)}
    result = cuda.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total))
    return {"result": result, "free": free_bytes.value, "total": total.value}


def total_mem(ordinal: int = 0) -> dict[str, Any]:
    total = ctypes.c_size_t()
    return {"result": cuda.cuDeviceTotalMem_v2(ctypes.byref(total), ordinal), "total": total.value}


def uuid(ordinal: int = 0) -> dict[str, Any]:
    value = (ctypes.c_ubyte * 16)()
    result = cuda.cuDeviceGetUuid(value, ordinal)
    text = bytes(value).hex()
    return {
        "result": result,
        "uuid": f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
    }


def churn(bytes: int, rounds: int) -> dict[str, Any]:
    """Allocate blocks of that size until refused, free every second one, and repeat."""
    held: list[int] = []
    refused = 0
    for _ in range(rounds):
        while (answer := alloc(bytes))["result"] == 0:
            held.append(answer["pointer"])
        refused += answer["result"] == 2
        for pointer in held[::2]:
            assert free(pointer)["result"] == 0
        held = held[1::2]
    for pointer in held:
        assert free(pointer)["result"] == 0
    return {"refused": refused}


def fork_and_alloc(bytes: int) -> dict[str, Any]:
    """Fork a child that reports and allocates (the simulated driver also runs in a child)."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        answer = {"before": info(), **alloc(bytes), "pid": os.getpid(), **files_open()}
        os.write(write_end, json.dumps(answer).encode())
        sys.stdin.read(0)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


def destroy_context(ordinal: int = 0) -> dict[str, Any]:
    return {"result": cuda.cuDevicePrimaryCtxRelease_v2(ordinal)}


def own_context(bytes: int) -> dict[str, Any]:
    """Create a context, allocate in it, and destroy it with the block still allocated."""
    context = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    answer = alloc(bytes)
    held = info()
    assert cuda.cuCtxDestroy_v2(context) == 0
    return {**answer, "held": held}


def further_context(how: str, bytes: int) -> dict[str, Any]:
    """Create a context, allocate a block in it, end both, and report the free memory after each.

    `left` is before the end of a block that outlives its context.
    """
    try:
        end = CONTEXTS[how]()
    except RefusedError as refused:
        return {"result": int(refused.args[0])}
    made = info()["free"]
    block = alloc(bytes)
    held = info()["free"]
    result = block["result"] or end()
    left = info()["free"]
    if result == 0 and how in OUTLIVED:
        result = free(block["pointer"])["result"]
    ended = info()["free"]
    return {"result": result, "made": made, "held": held, "left": left, "ended": ended}


def further_contexts(count: int) -> dict[str, Any]:
    """Make this many more contexts, which stay; the first is current again afterwards."""
    made = ctypes.c_void_p()
    result = 0
    for _ in range(count):
        result = result or cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0)
        result = result or cuda.cuCtxPopCurrent_v2(ctypes.byref(made))
    return {"result": result}


OPS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        init,
        open_device,
        create,
        alloc,
        free,
        take,
        give_back,
        synchronize,
        info,
        total_mem,
        uuid,
        churn,
        launch,
        launch_as_before_cuda_4,
        close_descriptors,
        files_open,
        fork_and_alloc,
        destroy_context,
        own_context,
        further_context,
        further_contexts,
        launch_on_both,
        launch_cooperatively,
        nvml,
        nvml_instance_codes,
        wait_event,
    )
}

if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        reply(OPS[request.pop("op")](**request))
