"""Arrays and mipmaps of the stand-in driver: what they take, and tiles of sparse ones."""

from tests.native.driver_program import Program, lines_after
from tests.native.machine import Machine

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

    def rounded(size: int) -> int:
        return -(-size // 512) * 512

    assert machine.used() == rounded(flat) + rounded(layered) + small
    program.go_on()
    assert program.rest() == ["400 400"]
    assert machine.used() == 0


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
