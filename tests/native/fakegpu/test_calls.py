"""Calls of the stand-in driver: streams, memory, host functions, arrays and mipmaps."""

from tests.native.driver_program import Program, lines_after
from tests.native.machine import MIB, Machine


def test_a_stream_that_waits_for_a_value_does_what_comes_after_it_in_order(
    machine: Machine,
) -> None:
    program = Program(
        machine,
        """
flag, event, taken = alloc(4096), c_void_p(), c_uint64()
number = ctypes.cast(flag.value, ctypes.POINTER(c_uint32))
ok(cuda.cuMemsetD32_v2(flag, 0, c_size_t(1024)))
ok(cuda.cuMemAllocAsync(byref(taken), c_size_t(4096), stream))
ok(cuda.cuStreamWaitValue32_v2(stream, flag, 7, 1))
ok(cuda.cuMemFreeAsync(taken, stream))
ok(cuda.cuEventCreate(byref(event), 0))
ok(cuda.cuEventRecord(event, stream))
show(cuda.cuStreamQuery(stream), cuda.cuEventQuery(event))
number[0] = 7
ok(cuda.cuEventSynchronize(event))
ok(cuda.cuStreamSynchronize(stream))
show(cuda.cuStreamQuery(stream), cuda.cuEventQuery(event))
""",
    )
    assert program.rest() == ["600 600", "0 0"]
    assert machine.used_bytes() == 0


def test_memory_freed_in_a_stream_is_on_the_card_until_the_stream_gets_there(
    machine: Machine,
) -> None:
    program = Program(
        machine,
        f"""
def take():
    made = c_uint64()
    ok(cuda.cuMemAllocAsync(byref(made), c_size_t({64 * MIB}), stream))
    return made


one = take()
busy(stream)
ok(cuda.cuMemFreeAsync(one, stream))
show(cuda.cuMemFreeAsync(one, stream))
sys.stdin.readline()
two = take()
show(two.value != 0)
sys.stdin.readline()
ok(cuda.cuMemFreeAsync(two, stream))
ok(cuda.cuStreamSynchronize(stream))
show("idle")
sys.stdin.readline()
""",
    )
    assert program.line() == "1"  # a second free is an error at once
    assert machine.used_bytes() == 64 * MIB
    program.go_on()
    assert program.line() == "True"
    assert machine.used_bytes() == 64 * MIB  # the same stream has the same bytes again
    program.go_on()
    assert program.line() == "idle"
    assert machine.used_bytes() == 0
    program.go_on()
    program.rest()


def test_memory_opened_by_another_process_outlives_its_maker(machine: Machine) -> None:
    maker = Program(
        machine,
        f"""
block, handle = alloc({8 * MIB}), (ctypes.c_char * 64)()
ok(cuda.cuMemsetD32_v2(block, 41, c_size_t(1)))
ok(cuda.cuIpcGetMemHandle(handle, block))
show(bytes(handle).hex())
sys.stdin.readline()
show(number_at(block))
""",
    )
    handle = maker.line()
    body = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


handle, at = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), c_uint64()
show(cuda.cuIpcOpenMemHandle_v2(byref(at), handle, 1))
if at.value:
    show(number_at(at))
    ok(cuda.cuMemsetD32_v2(at, 42, c_size_t(1)))
    show("written")
    sys.stdin.readline()
    now = number_at(at), cuda.cuMemFree_v2(at)
    show(*now, cuda.cuIpcCloseMemHandle(at), cuda.cuIpcCloseMemHandle(at))
    sys.stdin.readline()
"""
    reader = Program(machine, body, handle)
    assert [reader.line(), reader.line(), reader.line()] == ["0", "41", "written"]
    assert machine.used_bytes() == 8 * MIB
    maker.go_on()
    assert maker.rest() == ["42"]
    assert machine.used_bytes() == 8 * MIB  # its maker is gone, a holder is not
    reader.go_on()
    assert reader.line() == "42 1 0 1"
    assert machine.used_bytes() == 0
    reader.go_on()
    reader.rest()
    assert Program(machine, body, handle).rest() == ["1"]  # a stale handle
    assert Program(machine, body, "00" * 64).rest() == ["1"]


def test_host_memory_is_registered_once_and_pointers_show_what_they_are(machine: Machine) -> None:
    program = Program(
        machine,
        """
page = ctypes.create_string_buffer(8192)
kind = c_uint32()
at = c_uint64()
size = c_size_t
show(*(cuda.cuMemHostRegister_v2(page, size(n), 0) for n in (8192, 1)))
show(
    cuda.cuMemHostGetDevicePointer_v2(byref(at), page, 0),
    at.value == ctypes.addressof(page),
)
show(cuda.cuPointerGetAttribute(byref(kind), 2, at), kind.value)
gone = [cuda.cuMemHostUnregister(page) for _ in range(2)]
show(*gone, cuda.cuMemHostRegister_v2(page, 1, 99))
show(cuda.cuPointerGetAttribute(byref(kind), 2, at), cuda.cuMemFreeHost(page))
""",
    )
    assert program.rest() == [
        "0 712",
        "0 True",
        "0 1",
        "0 713 1",
        "1 1",
    ]


def test_only_memory_that_was_made_to_be_exported_is(machine: Machine) -> None:
    program = Program(
        machine,
        """
handle, fd = c_uint64(), ctypes.c_int()
for types in (0, 1):
    wanted, made = (ctypes.c_int * 8)(1, types, 1, 0), (ctypes.c_int * 8)()
    ok(cuda.cuMemCreate(byref(handle), c_size_t(2 << 20), wanted, c_uint64(0)))
    ok(cuda.cuMemGetAllocationPropertiesFromHandle(made, handle))
    show(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)), made[1])
""",
    )
    assert program.rest() == ["1 0", "0 1"]


def test_each_import_is_a_handle_of_its_own_and_the_memory_is_there_once(machine: Machine) -> None:
    program = Program(
        machine,
        """
made, fd, at, nothing = c_uint64(), ctypes.c_int(), c_uint64(), c_uint64(0)
unit = c_size_t(2 << 20)
handles = [made, c_uint64(), c_uint64()]
properties = (ctypes.c_int * 8)(1, 1, 1, 0, 0, 0, 0, 0)
ok(cuda.cuMemCreate(byref(made), c_size_t(8 << 20), properties, nothing))
ok(cuda.cuMemExportToShareableHandle(byref(fd), made, 1, nothing))
for handle in handles[1:]:
    ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd.value), 1))
show(len({handle.value for handle in handles}))
show([cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, nothing) for handle in handles])
ok(cuda.cuMemAddressReserve(byref(at), c_size_t(16 << 20), c_size_t(0), nothing, nothing))
for handle in handles:
    parts = ((2, 0), (4, 2), (10, 0), (8, 0))
    show([cuda.cuMemMap(at, c_size_t(mib << 20), c_size_t(o << 20), handle, nothing)
          for mib, o in parts])
    ok(cuda.cuMemUnmap(at, c_size_t(8 << 20)))
for handle in handles:
    show("held")
    sys.stdin.readline()
    ok(cuda.cuMemRelease(handle))
show("gone")
""",
    )
    assert program.line() == "3"
    assert program.line() == "[0, 1, 1]"
    assert [program.line() for _ in range(3)] == ["[801, 801, 801, 0]"] * 3
    for _ in range(3):
        assert program.line() == "held"
        assert machine.used_bytes() == 8 * MIB
        program.go_on()
    assert program.rest() == ["gone"]
    assert machine.used_bytes() == 0


def test_an_exported_handle_keeps_memory_on_the_card_after_its_maker(machine: Machine) -> None:
    body = """
import os, socket

handle, at, fd, pair = c_uint64(), c_uint64(), ctypes.c_int(), socket.socketpair()
child = os.fork()
if child == 0:
    properties = (ctypes.c_int * 8)(1, 1, 1, 0, 0, 0, 0, 0)
    ok(cuda.cuMemCreate(byref(handle), c_size_t(SIZE), properties, c_uint64(0)))
    ok(cuda.cuMemExportToShareableHandle(byref(fd), handle, 1, c_uint64(0)))
    socket.send_fds(pair[0], [b"x"], [fd.value])
    pair[0].recv(1)
    os._exit(0)
_, fds, *_ = socket.recv_fds(pair[1], 1, 1)
ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(fds[0]), 1))
pair[1].send(b"x")
os.waitpid(child, 0)
show("alone")
sys.stdin.readline()
ok(
    cuda.cuMemAddressReserve(
        byref(at), c_size_t(SIZE), c_size_t(0), c_uint64(0), c_uint64(0)
    )
)
ok(cuda.cuMemMap(at, c_size_t(SIZE), c_size_t(0), handle, c_uint64(0)))
ok(cuda.cuMemRelease(handle))
show("mapped")
sys.stdin.readline()
ok(cuda.cuMemUnmap(at, c_size_t(SIZE)))
show("gone")
sys.stdin.readline()
""".replace("SIZE", str(8 * MIB))
    holder = Program(machine, body)
    for step, used in (("alone", 8 * MIB), ("mapped", 8 * MIB), ("gone", 0)):
        assert holder.line() == step
        assert machine.used_bytes() == used
        holder.go_on()
    holder.rest()


ARRAYS = """
from ctypes import Structure, c_int, c_uint, c_ulonglong


class Array(Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


FLOAT = 0x20


def mipmap(levels, *sides, flags=0):
    made = c_void_p()
    wanted = Array(*sides, FLOAT, 1, flags)
    ok(cuda.cuMipmappedArrayCreate(byref(made), byref(wanted), levels))
    return made
"""
lines = lines_after(ARRAYS)


def test_a_mipmap_takes_the_memory_of_all_its_levels(machine: Machine) -> None:
    program = Program(
        machine,
        ARRAYS
        + """
flat, layered = mipmap(9, 1024, 512, 0), mipmap(3, 64, 64, 6, flags=1)
small, sparse = mipmap(40, 8, 2, 0), mipmap(5, 1024, 1024, 0, flags=0x40)
show("made")
sys.stdin.readline()
for made in (flat, layered, small, sparse):
    ok(cuda.cuMipmappedArrayDestroy(made))
show(cuda.cuMipmappedArrayDestroy(flat), cuda.cuMipmappedArrayDestroy(None))
""",
    )
    assert program.line() == "made"
    flat = sum((1024 >> n) * (512 >> n) * 4 for n in range(9))
    layered = sum((64 >> n) ** 2 * 6 * 4 for n in range(3))
    small = 512  # 8 x 2, 4 x 1, 2 x 1 and 1 x 1 floats

    def round_up(size: int) -> int:
        return -(-size // 512) * 512

    assert machine.used_bytes() == round_up(flat) + round_up(layered) + small
    program.go_on()
    assert program.rest() == ["400 400"]
    assert machine.used_bytes() == 0


def test_tiles_are_mapped_as_a_whole_and_from_memory_for_tiles(machine: Machine) -> None:
    assert lines(
        machine,
        """
class Tile(Structure):
    _fields_ = [
        ("resource", c_ulonglong * 2),
        ("kind", c_int),
        ("padding", c_int),
        ("part", c_uint * 8),
        ("operation", c_int),
        ("handle_type", c_int),
        ("handle", c_uint64),
        ("offset", c_uint64),
        ("mask", c_uint),
        ("rest", c_uint * 3),
    ]


MIB = 1 << 20
sparse, dense, handles = c_void_p(), c_void_p(), {}
ok(cuda.cuArray3DCreate_v2(byref(sparse), byref(Array(1000, 256, 0, FLOAT, 4, 0x40))))
ok(cuda.cuArray3DCreate_v2(byref(dense), byref(Array(1024, 256, 0, FLOAT, 4, 0))))
for usage in (0, 1):
    made = c_uint64()
    place = (c_int * 8)(1, 0, 1, 0, 0, 0, usage << 16)
    ok(cuda.cuMemCreate(byref(made), c_size_t(4 * MIB), place, c_uint64(0)))
    handles[usage] = made.value


def mapped(extents, usage=1, mask=1, array=sparse, offsets=(0, 0, 0), offset=0, operation=1):
    part = (c_uint * 8)(0, 0, *offsets, *extents)
    tile = Tile((c_ulonglong * 2)(0, array.value), 0, 0, part, operation, 0, handles[usage])
    tile.offset, tile.mask = offset, mask
    return cuda.cuMemMapArrayAsync(byref(tile), 1, None)


# Tiles of 64 x 64 elements; the last column is cut by the edge.
show(mapped((0, 0, 0)), mapped((64, 60, 1)), mapped((64, 64, 1), offsets=(32, 0, 0)))
show(mapped((1000, 256, 1)), mapped((64, 64, 1)), mapped((64, 64, 1), offsets=(960, 0, 0)))
show(mapped((64, 64, 1), mask=0), mapped((64, 64, 1), mask=4), mapped((64, 64, 1), usage=0))
show(mapped((64, 64, 1), array=dense), mapped((64, 64, 1), offset=4 * MIB))
show(mapped((1000, 256, 1), offset=MIB), mapped((64, 64, 1), operation=2))
""",
    ) == ["1 1 1", "0 0 1", "1 1 1", "1 1", "1 0"]
