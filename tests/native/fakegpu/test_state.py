"""What the stand-in driver keeps for a program: attributes, advice, pools, its log."""

from tests.native.driver_program import lines_after
from tests.native.fakegpu.object_program import OBJECTS
from tests.native.machine import MIB, Machine

lines = lines_after(OBJECTS)


def test_streams_and_kernel_nodes_have_attributes(machine: Machine) -> None:
    assert lines(
        machine,
        """
def value(*n):
    return (c_int * 16)(*n)


seen, level = value(), c_int()
get, put = cuda.cuStreamGetAttribute, cuda.cuStreamSetAttribute
show(
    get(stream, 3, seen),
    seen[0],
    put(stream, 3, value(3)),
    get(stream, 3, seen),
    seen[0],
    put(stream, 3, value(9)),
)
show(
    put(stream, 2, value(1)),
    put(stream, 99, value(1)),
    put(None, 3, value(1)),
    get(None, 3, seen),
)
ok(put(stream, 8, value(-99)))
ok(cuda.cuStreamGetPriority(stream, byref(level)))
show(level.value)


class Window(Structure):
    _fields_ = [
        ("base", c_void_p),
        ("size", c_size_t),
        ("ratio", c_float),
        ("hit", c_int),
        ("miss", c_int),
        ("pad", c_int * 8),
    ]


show(
    put(stream, 1, byref(Window(1, 2, 0.5, 2, 1))),
    put(stream, 1, byref(Window(1, 2, 1.5, 2, 1))),
    put(stream, 1, byref(Window(1, 2, 0.5, 2, 2))),
)
other = c_void_p()
ok(cuda.cuStreamCreate(byref(other), 1))
ok(cuda.cuStreamCopyAttributes(other, stream))
ok(get(other, 3, seen))
ok(cuda.cuStreamGetPriority(other, byref(level)))
show(seen[0], level.value)


class Kernel(Structure):
    _fields_ = [("func", c_void_p), ("dims", c_uint * 7), ("rest", c_void_p * 4)]


graph, one, two = c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuGraphCreate(byref(graph), 0))
what = Kernel(kernel(), (c_uint * 7)(1, 1, 1, 32, 1, 1, 0))
for node in (one, two):
    ok(cuda.cuGraphAddKernelNode_v2(byref(node), graph, None, c_size_t(0), byref(what)))
put, get = cuda.cuGraphKernelNodeSetAttribute, cuda.cuGraphKernelNodeGetAttribute
show(
    put(one, 4, value(2, 2, 1)),
    put(one, 4, value(2, 0, 1)),
    put(one, 3, value(1)),
    get(two, 4, seen),
    seen[0],
)
ok(cuda.cuGraphKernelNodeCopyAttributes(two, one))
ok(get(two, 4, seen))
show(list(seen[:3]))
""",
    ) == ["0 1 0 0 3 1", "1 1 801 0", "-5", "0 1 1", "3 -5", "0 1 1 0 0", "[2, 2, 1]"]


def test_what_was_advised_about_ranges_of_managed_memory_is_known(machine: Machine) -> None:
    assert lines(
        machine,
        """
memory, page = c_uint64(), 4096
size = c_size_t


class Place(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


ok(cuda.cuMemAllocManaged(byref(memory), size(8 * page), 1))


def at(pages):
    return c_uint64(memory.value + pages * page)


def ask(what, first, count, slots=1):
    seen = (c_int * slots)(*[99] * slots)
    result = cuda.cuMemRangeGetAttribute(
        seen, size(4 * slots), what, at(first), size(count * page)
    )
    return list(seen) if result == 0 else result


show(ask(1, 0, 8), ask(2, 0, 8), ask(4, 0, 8), ask(9, 0, 8), ask(1, 0, 9), ask(1, 0, 1, 2))
ok(cuda.cuMemPrefetchAsync(at(0), size(4 * page), 1, stream))
ok(cuda.cuMemPrefetchAsync(at(4), size(4 * page), -1, stream))
show(ask(4, 0, 4), ask(4, 4, 4), ask(4, 0, 8), ask(4, 3, 2))
ok(cuda.cuMemPrefetchAsync(at(2), size(4 * page), 0, stream))
show(ask(4, 0, 2), ask(4, 2, 4), ask(4, 6, 2), ask(7, 2, 4), ask(8, 2, 4))
ok(cuda.cuMemAdvise(at(0), size(8 * page), 5, 1))
ok(cuda.cuMemAdvise(at(0), size(8 * page), 5, -1))
ok(cuda.cuMemAdvise(at(4), size(page), 6, 1))
show(ask(3, 0, 4, 3), ask(3, 0, 8, 3), ask(3, 5, 2, 1))
ok(cuda.cuMemAdvise(at(0), size(page), 1, 0))
ok(cuda.cuMemAdvise(at(0), size(page), 3, 1))
show(
    ask(1, 0, 1),
    ask(1, 0, 2),
    ask(2, 0, 1),
    ask(5, 0, 1),
    ask(6, 0, 1),
    cuda.cuMemAdvise(at(0), size(page), 3, 9),
)
ok(cuda.cuMemsetD32_v2(memory, 7, size(2 * page)))
starts, sizes = (c_uint64 * 2)(memory.value, at(6).value), (c_size_t * 2)(page, page)
places, indexes = (Place * 2)(Place(1, 0), Place(1, 1)), (c_size_t * 2)(0, 1)
call = cuda.cuMemDiscardAndPrefetchBatchAsync
show(
    call(starts, sizes, size(2), places, indexes, size(2), c_uint64(0), None),
    call(
        starts, sizes, size(2), places, (c_size_t * 2)(0, 2), size(2), c_uint64(0), stream
    ),
    call(starts, sizes, size(2), places, indexes, size(2), c_uint64(0), stream),
)
ok(cuda.cuStreamSynchronize(stream))
show(number_at(memory), number_at(at(1)), ask(4, 0, 1), ask(4, 6, 1))
show(
    cuda.cuMemPrefetchBatchAsync(
        starts, sizes, size(2), places, indexes, size(1), c_uint64(0), stream
    ),
    ask(4, 6, 1),
    cuda.cuMemDiscardBatchAsync(starts, sizes, size(0), c_uint64(0), stream),
)
ok(cuda.cuMemFree_v2(memory))
ok(cuda.cuMemAllocManaged(byref(memory), size(8 * page), 1))
show(ask(4, 6, 1), ask(1, 0, 1))
""",
    ) == [
        "[0] [-2] [-2] 1 1 1",
        "[1] [-1] [-2] [-2]",
        "[1] [0] [-1] [1] [0]",
        "[-1, 1, -2] [-1, -2, -2] [-1]",
        "[1] [0] [1] [1] [1] 101",
        "1 1 0",
        "0 7 [0] [1]",
        "0 [0] 1",
        "[-2] [0]",
    ]


def test_pools_are_found_by_place_and_opened_to_other_cards(machine: Machine) -> None:
    machine.settings["devices"][0]["nvlinks"] = [1]
    machine.settings["devices"][1]["nvlinks"] = [0]
    machine.write()
    assert lines(
        machine,
        """
class Place(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Access(Structure):
    _fields_ = [("place", Place), ("flags", c_int)]


pool, same, flags = c_void_p(), c_void_p(), c_int()
get = cuda.cuMemGetDefaultMemPool
show(
    get(byref(pool), byref(Place(1, 0)), 1),
    get(byref(same), byref(Place(2, 0)), 1),
    get(byref(same), byref(Place(1, 0)), 9),
)
ok(cuda.cuDeviceGetDefaultMemPool(byref(same), 0))
show(same.value == pool.value)


def access(device):
    ok(cuda.cuMemPoolGetAccess(byref(flags), pool, byref(Place(1, device))))
    return flags.value


show(access(0), access(1))
ok(cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 1), 3)), c_size_t(1)))
show(
    access(1),
    cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 0), 0)), c_size_t(1)),
    cuda.cuMemPoolSetAccess(pool, byref(Access(Place(1, 9), 3)), c_size_t(1)),
)
props = (c_uint * 22)(1, 0, 1, 0)
made = c_void_p()
ok(cuda.cuMemPoolCreate(byref(made), props))
ok(cuda.cuMemSetMemPool(byref(Place(1, 0)), 1, made))
ok(cuda.cuMemGetMemPool(byref(same), byref(Place(1, 0)), 1))
show(same.value == made.value, cuda.cuMemSetMemPool(byref(Place(1, 1)), 1, made))
can, operations = (c_uint * 2)(9, 9), (c_int * 2)(0, 10)
show(cuda.cuDeviceGetP2PAtomicCapabilities(can, operations, 2, 0, 1), list(can))
show(
    cuda.cuDeviceGetHostAtomicCapabilities(can, operations, 2, 0),
    list(can),
    cuda.cuDeviceGetHostAtomicCapabilities(can, (c_int * 2)(0, 13), 2, 0),
)
""",
    ) == ["0 801 1", "True", "3 0", "3 1 101", "True 1", "0 [31, 28]", "0 [0, 0] 1"]


def test_the_log_has_the_reason_why_calls_failed(machine: Machine) -> None:
    file = machine.folder / "driver.log"
    assert lines(
        machine,
        f"""
CALL = ctypes.CFUNCTYPE(None, c_void_p, c_int, ctypes.c_char_p, c_size_t)
heard = []
call = CALL(lambda data, level, text, length: heard.append((level, len(text) == length)))
handle, now, buffer, size = (
    c_void_p(),
    c_uint(),
    ctypes.create_string_buffer(25600),
    c_size_t(25600),
)
ok(cuda.cuLogsRegisterCallback(call, None, byref(handle)))
ok(cuda.cuLogsCurrent(byref(now), 0))
block = c_uint64()
ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0))
show(size.value)


def too_much():
    return cuda.cuMemAlloc_v2(byref(block), c_size_t({9000 * MIB}))


show(too_much(), heard)
size.value = 25600
ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0))
show(size.value == len(buffer.value), str({9000 * MIB}).encode() in buffer.value)
size.value = 25600
ok(cuda.cuLogsDumpToMemory(byref(now), buffer, byref(size), 0))
show(size.value)
ok(cuda.cuLogsUnregisterCallback(handle))
show(cuda.cuLogsUnregisterCallback(handle), too_much(), too_much(), len(heard))
size.value = 4
show(cuda.cuLogsDumpToMemory(None, buffer, byref(size), 0), size.value)
size.value = 150
ok(cuda.cuLogsDumpToMemory(None, buffer, byref(size), 0))
show(buffer.value.count(b"\\n"), size.value <= 149)
show(
    cuda.cuLogsDumpToFile(None, b"{file}", 0),
    cuda.cuLogsDumpToFile(None, b"{file}/none", 0),
    cuda.cuLogsDumpToFile(None, None, 0),
)
""",
    ) == ["0", "2 [(0, True)]", "True True", "0", "1 2 2 1", "1 0", "3 True", "0 304 1"]
    assert len(file.read_text().splitlines()) == 3
