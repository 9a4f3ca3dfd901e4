"""Every call of the driver that makes a context, and how that context ends.

Runs inside a client: `KINDS[name]` makes a context of the first device current and returns its end;
RefusedError if the driver refuses. Allocations in a context of `OUTLIVED` outlive it.
"""

import ctypes
from collections.abc import Callable

from tests.native.allocators.allocation import cuda, ok

End = Callable[[], int]
DEFAULT_STREAM = 1
MULTIPROCESSORS = 1  # CU_DEV_RESOURCE_TYPE_SM


def make_context(name: str, *arguments: object, by: str = "cuCtxDestroy_v2") -> End:
    context = ctypes.c_void_p()
    ok(getattr(cuda, name)(ctypes.byref(context), *arguments))
    return lambda: int(getattr(cuda, by)(context))


def attach_context() -> End:
    """Detaching ends it when the last one does."""
    context, again = ctypes.c_void_p(), ctypes.c_void_p()
    ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    ok(cuda.cuCtxAttach(ctypes.byref(again), 0))
    return lambda: int(cuda.cuCtxDetach(context) or cuda.cuCtxDetach(context))


class Resource(ctypes.Structure):
    """CUdevResource; the part before the count is the driver's own."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("multiprocessors", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 108),  # more than any driver so far writes
    )


def described_part() -> ctypes.c_void_p:
    """A description of the smallest group of multiprocessors that the device has."""
    whole, group, count, description = Resource(), Resource(), ctypes.c_uint(1), ctypes.c_void_p()
    ok(cuda.cuDeviceGetDevResource(0, ctypes.byref(whole), MULTIPROCESSORS))
    wanted = (ctypes.byref(group), ctypes.byref(count), ctypes.byref(whole))
    ok(cuda.cuDevSmResourceSplitByCount(*wanted, None, 0, 1))
    ok(cuda.cuDevResourceGenerateDesc(ctypes.byref(description), ctypes.byref(group), 1))
    return description


def green() -> End:
    green_context, context = ctypes.c_void_p(), ctypes.c_void_p()
    part = described_part()
    ok(cuda.cuGreenCtxCreate(ctypes.byref(green_context), part, 0, DEFAULT_STREAM))
    ok(cuda.cuCtxFromGreenCtx(ctypes.byref(context), green_context))
    ok(cuda.cuCtxPushCurrent_v2(context))

    def end() -> int:
        """One that is destroyed while it is current stays so, and is of no use."""
        popped = ctypes.c_void_p()
        ok(cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)))
        return int(cuda.cuGreenCtxDestroy(green_context))

    return end


KINDS: dict[str, Callable[[], End]] = {
    "cuCtxCreate": lambda: make_context("cuCtxCreate", 0, 0, by="cuCtxDestroy"),
    "cuCtxCreate_v2": lambda: make_context("cuCtxCreate_v2", 0, 0),
    "cuCtxCreate_v3": lambda: make_context("cuCtxCreate_v3", None, 0, 0, 0),
    "cuCtxCreate_v4": lambda: make_context("cuCtxCreate_v4", None, 0, 0),
    "cuGLCtxCreate": lambda: make_context("cuGLCtxCreate", 0, 0),
    "cuGLCtxCreate_v2": lambda: make_context("cuGLCtxCreate_v2", 0, 0),
    "cuVDPAUCtxCreate": lambda: make_context("cuVDPAUCtxCreate", 0, 0, 1, ctypes.c_void_p(1)),
    "cuVDPAUCtxCreate_v2": lambda: make_context("cuVDPAUCtxCreate_v2", 0, 0, 1, ctypes.c_void_p(1)),
    "cuCtxDetach": attach_context,
    "cuGreenCtxCreate": green,
}
OUTLIVED = frozenset({"cuGreenCtxCreate"})
