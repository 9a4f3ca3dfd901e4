"""Launches of an idle kernel, for the client."""

import ctypes
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")


def load_kernel() -> ctypes.c_void_p:
    """An idle kernel, in the current context."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = b".version 6.0\n.target sm_50\n.visible .entry idle()\n{ ret; }\n"
    assert cuda.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"idle") == 0
    return function


def launch(kernels: int, blocks: int = 1) -> dict[str, Any]:
    function, result = load_kernel(), 0
    for _ in range(kernels):
        result = result or cuda.cuLaunchKernel(
            function, blocks, 1, 1, 1024, 1, 1, 0, None, None, None
        )
    return {"result": result or cuda.cuCtxSynchronize()}


def launch_as_before_cuda_4(how: str, kernels: int) -> dict[str, Any]:
    function = load_kernel()
    result = cuda.cuFuncSetBlockShape(function, 1024, 1, 1)
    arguments = {"cuLaunch": (), "cuLaunchGrid": (8, 1), "cuLaunchGridAsync": (8, 1, None)}[how]
    for _ in range(kernels):
        result = result or getattr(cuda, how)(function, *arguments)
    return {"result": result or cuda.cuCtxSynchronize()}


def launch_on_both(how: str) -> dict[str, Any]:
    """Launch a kernel on the current device, and immediately one on the other."""
    modules = {0: load_kernel()}
    other = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(other), 1) == 0
    assert cuda.cuCtxPushCurrent_v2(other) == 0
    modules[1] = load_kernel()
    if how == "pop":
        modules = {0: modules[1], 1: modules[0]}
    else:
        assert cuda.cuCtxPopCurrent_v2(None) == 0
    result = cuda.cuLaunchKernel(modules[0], 1, 1, 1, 1, 1, 1, 0, None, None, None)
    if how == "set":
        assert cuda.cuCtxSetCurrent(other) == 0
    elif how == "push":
        assert cuda.cuCtxPushCurrent_v2(other) == 0
    elif how == "pop":
        assert cuda.cuCtxPopCurrent_v2(None) == 0
    else:
        assert cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 1) == 0
        modules[1] = load_kernel()
    return {
        "result": result or cuda.cuLaunchKernel(modules[1], 1, 1, 1, 1, 1, 1, 0, None, None, None)
    }


class LaunchParams(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
    )


def params_in(context: ctypes.c_void_p) -> LaunchParams:
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    stream = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    params = LaunchParams(load_kernel(), (1, 1, 1, 1, 1, 1, 0), stream)
    assert cuda.cuCtxPopCurrent_v2(None) == 0
    return params


def launch_cooperatively(first: int) -> dict[str, Any]:
    """Launch a kernel on each of both devices in one call, and immediately one on the current
    device, which is `first`."""
    contexts = ctypes.c_void_p(), ctypes.c_void_p()
    for ordinal, context in enumerate(contexts):
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    assert cuda.cuCtxSetCurrent(contexts[first]) == 0
    function = load_kernel()
    launches = (LaunchParams * 2)(*map(params_in, contexts))
    result = cuda.cuLaunchCooperativeKernelMultiDevice(launches, 2, 0)
    return {
        "result": result or cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    }
