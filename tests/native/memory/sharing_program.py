"""Programs of one container that pass memory to each other; each call is an expression.

`ask(program, "made(60)")` evaluates it in the program, and returns the printed value.
"""

from tests.native.driver_program import Program

SHELL = """
import os
from ctypes import c_int

MIB = 1 << 20
handles, addresses, files = [], {}, []


class Shared(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def try_to_take(mib):
    pointer = c_uint64()
    result = cuda.cuMemAlloc_v2(byref(pointer), c_size_t(mib * MIB))
    return result or cuda.cuMemFree_v2(pointer)


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def look():
    "Making and ending a context is followed by a look at NVML."
    further = c_void_p()
    ok(cuda.cuCtxCreate_v2(byref(further), 0, 0))
    ok(cuda.cuCtxDestroy_v2(further))
    return free_mib()


def kept(handle):
    handles.append(handle)
    return len(handles) - 1


def made(mib):
    handle, place = c_uint64(), (c_int * 8)(1, 1, 1, 0)
    ok(cuda.cuMemCreate(byref(handle), c_size_t(mib * MIB), place, c_uint64(0)))
    return kept(handle)


def exported(at):
    file = c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(file), handles[at], 1, c_uint64(0)))
    return f"/proc/{os.getpid()}/fd/{file.value}"


def imported(path):
    handle, file = c_uint64(), os.open(path, os.O_RDWR)
    result = cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(file), 1)
    os.close(file)
    ok(result)
    return kept(handle)


def closed(path):
    os.close(int(path.rpartition("/")[2]))


def mapped(at, mib):
    address, size, nothing = c_uint64(), c_size_t(mib * MIB), c_uint64(0)
    ok(cuda.cuMemAddressReserve(byref(address), size, c_size_t(0), nothing, nothing))
    ok(cuda.cuMemMap(address, size, c_size_t(0), handles[at], nothing))
    addresses[at] = (address, size)


def unmapped(at):
    ok(cuda.cuMemUnmap(*addresses.pop(at)))


def released(at):
    ok(cuda.cuMemRelease(handles[at]))


def block(mib):
    return kept(alloc(mib * MIB))


def shown(at):
    handle = Shared()
    ok(cuda.cuIpcGetMemHandle(byref(handle), handles[at]))
    return ctypes.string_at(byref(handle), 64).hex()


def opened(text):
    handle, pointer = Shared(), c_uint64()
    ctypes.memmove(byref(handle), bytes.fromhex(text), 64)
    ok(cuda.cuIpcOpenMemHandle_v2(byref(pointer), handle, 1))
    return kept(pointer)


def shut(at):
    ok(cuda.cuIpcCloseMemHandle(handles[at]))


def freed(at):
    ok(cuda.cuMemFree_v2(handles[at]))


def freed_in_a_stream(at):
    ok(cuda.cuMemFreeAsync(handles[at], stream) or cuda.cuStreamSynchronize(stream))


show("ready")
for line in sys.stdin:
    show(eval(line))
"""


def ask(program: Program, expression: str) -> str:
    """Return the expression's value in the program as text."""
    assert program.process.stdin
    program.process.stdin.write(expression + "\n")
    program.process.stdin.flush()
    answer = program.line()
    assert answer, f"the program ended with {expression}"
    return answer
