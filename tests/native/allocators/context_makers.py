"""Every call of the driver that makes a context, and how that context ends.

Runs inside a client: `KINDS[name]` makes one of the first device current and returns its end.
"""

import ctypes
from collections.abc import Callable

from tests.native.allocators.allocation import cuda

End = Callable[[], int]
DEFAULT_STREAM = 1


def made(name: str, *arguments: object, by: str = "cuCtxDestroy_v2") -> End:
    context = ctypes.c_void_p()
    assert getattr(cuda, name)(ctypes.byref(context), *arguments) == 0
    return lambda: int(getattr(cuda, by)(context))


def attached() -> End:
    """Detaching ends it when the last one does."""
    context, again = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuCtxAttach(ctypes.byref(again), 0) == 0
    return lambda: int(cuda.cuCtxDetach(context) or cuda.cuCtxDetach(context))


def green() -> End:
    green_context, context = ctypes.c_void_p(), ctypes.c_void_p()
    resources = ctypes.create_string_buffer(8)
    assert cuda.cuGreenCtxCreate(ctypes.byref(green_context), resources, 0, DEFAULT_STREAM) == 0
    assert cuda.cuCtxFromGreenCtx(ctypes.byref(context), green_context) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    return lambda: int(cuda.cuGreenCtxDestroy(green_context))


KINDS: dict[str, Callable[[], End]] = {
    "cuCtxCreate": lambda: made("cuCtxCreate", 0, 0, by="cuCtxDestroy"),
    "cuCtxCreate_v2": lambda: made("cuCtxCreate_v2", 0, 0),
    "cuCtxCreate_v3": lambda: made("cuCtxCreate_v3", None, 0, 0, 0),
    "cuCtxCreate_v4": lambda: made("cuCtxCreate_v4", None, 0, 0),
    "cuGLCtxCreate_v2": lambda: made("cuGLCtxCreate_v2", 0, 0),
    "cuVDPAUCtxCreate_v2": lambda: made("cuVDPAUCtxCreate_v2", 0, 0, 1, ctypes.c_void_p(1)),
    "cuCtxDetach": attached,
    "cuGreenCtxCreate": green,
}
