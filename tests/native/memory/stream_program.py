"""Programs under libvgpu that allocate and free in streams, which they can hold up."""

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container

LIMIT = 100 * MIB

BLOCKED = """
LIMIT = 100 << 20
REFUSED = 2


def new_stream():
    made = c_void_p()
    ok(cuda.cuStreamCreate(byref(made), 1))
    return made


def take(size, at=stream):
    made = c_uint64()
    return cuda.cuMemAllocAsync(byref(made), c_size_t(size), at), made


def held(size, at=stream):
    result, made = take(size, at)
    ok(result)
    return made


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def wait():
    sys.stdin.readline()


flag = c_void_p()
ok(cuda.cuMemHostAlloc(byref(flag), c_size_t(4096), 2))
gate = ctypes.cast(flag, ctypes.POINTER(c_uint32))
gate[0] = 0


def block(at=stream):
    ok(cuda.cuStreamWaitValue32_v2(at, c_uint64(flag.value), c_uint32(1), 0))


def let_go():
    gate[0] = 1


other = new_stream()
"""


def program(container: Container, body: str) -> Program:
    container.limit(LIMIT)
    return Program(container.machine, BLOCKED + body, env=container.env())
