"""Arrays, mipmaps, textures and surfaces of the stand-in driver."""

from tests.native.driver_program import Program, lines_after
from tests.native.fakegpu.object_program import OBJECTS
from tests.native.machine import Machine

lines = lines_after(OBJECTS)


def test_each_level_of_a_mipmap_is_an_array_with_content(machine: Machine) -> None:
    program = Program(
        machine,
        OBJECTS
        + """
flat, layered = mipmap(9, 1024, 512, 0), mipmap(3, 64, 64, 6, flags=1)
show(
    [sides(level(flat, n)[1]) for n in (0, 1, 8)],
    level(flat, 9)[0],
    sides(level(layered, 2)[1]),
)
show(level(mipmap(40, 8, 2, 0), 3)[0], level(mipmap(40, 8, 2, 0), 4)[0])


class Copy(Structure):
    _fields_ = [
        (n, c_size_t) for n in "sx sy st sh sd sa sp dx dy dt dh dd da dp w h".split()
    ]


floats = (c_float * 4)(1, 2, 3, 4)
back = (c_float * 4)()
for n in (1, 2):
    floats[0] = n
    into = Copy(
        st=1, sh=ctypes.addressof(floats), dt=3, da=level(flat, n)[1].value, w=16, h=1
    )
    ok(cuda.cuMemcpy2D_v2(byref(into)))
out = Copy(st=3, sa=level(flat, 1)[1].value, dt=1, dh=ctypes.addressof(back), w=16, h=1)
ok(cuda.cuMemcpy2D_v2(byref(out)))
show(list(back))
beyond = Copy(st=3, sa=level(flat, 8)[1].value, dt=1, dh=ctypes.addressof(back), w=20, h=1)
show(cuda.cuMemcpy2D_v2(byref(beyond)))
show(
    cuda.cuArrayDestroy(level(flat, 1)[1]),
    cuda.cuArrayGetPlane(byref(c_void_p()), level(flat, 0)[1], 0),
)
sys.stdin.readline()
ok(cuda.cuMipmappedArrayDestroy(flat))
show(cuda.cuMipmappedArrayDestroy(None))
""",
    )
    assert program.line() == "[(1024, 512, 0), (512, 256, 0), (4, 2, 0)] 1 (16, 16, 6)"
    assert [program.line() for _ in range(4)] == ["0 1", "[1.0, 2.0, 3.0, 4.0]", "1", "400 1"]
    flat = sum((1024 >> n) * (512 >> n) * 4 for n in range(9))
    layered = sum((64 >> n) ** 2 * 6 * 4 for n in range(3))
    small = 2 * 512  # 8 x 2, 4 x 1, 2 x 1 and 1 x 1 floats each

    def rounded(size: int) -> int:
        return -(-size // 512) * 512

    assert machine.used() == rounded(flat) + rounded(layered) + small
    program.go_on()
    assert program.rest() == ["400"]


def test_sparse_and_deferred_arrays_show_what_they_need(machine: Machine) -> None:
    assert lines(
        machine,
        """
needs, tiles = (c_size_t * 4)(), (c_uint * 12)()
plain, sparse, later = (
    mipmap(5, 1024, 1024, 0),
    mipmap(5, 1024, 1024, 0, flags=0x40),
    mipmap(1, 1024, 1024, 0, flags=0x80),
)
ask = cuda.cuMipmappedArrayGetMemoryRequirements
show(ask(needs, plain, 0), ask(needs, later, 0), needs[0], needs[1], ask(needs, later, 7))
ask = cuda.cuMipmappedArrayGetSparseProperties
show(
    ask(tiles, plain),
    ask(tiles, sparse),
    list(tiles[:4]),
    c_ulonglong.from_buffer(tiles, 16).value,
)
width = c_size_t()
show(
    cuda.cuDeviceGetTexture1DLinearMaxWidth(byref(width), FLOAT, 4, 0),
    width.value,
    cuda.cuDeviceGetTexture1DLinearMaxWidth(byref(width), FLOAT, 3, 0),
)


memory, made = c_void_p(), c_void_p()
ok(cuda.cuImportExternalMemory(byref(memory), byref(Memory(1, size=1 << 20))))
wanted = Mapped(0, Array(512, 256, 0, FLOAT, 1, 0), 3)
call = cuda.cuExternalMemoryGetMappedMipmappedArray
show(call(byref(made), memory, byref(wanted)), level(made, 2)[0])
wanted.offset = 1 << 19
show(call(byref(made), memory, byref(wanted)))
""",
    ) == ["1 0 4194304 2097152 101", "1 0 [128, 128, 1, 4] 65536", "0 268435456 1", "0 0", "1"]


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


def test_texture_and_surface_objects_are_checked_and_shown(machine: Machine) -> None:
    assert lines(
        machine,
        """
class Resource(Structure):
    _fields_ = [("type", c_int), ("body", c_ulonglong * 16), ("flags", c_uint)]


texture, view, made = (c_uint * 26)(1, 1, 1, 1), (c_ulonglong * 14)(7, 64, 64), c_uint64()
arrays = [c_void_p(), c_void_p()]
for array, flags in zip(arrays, (0, 2)):
    ok(cuda.cuArray3DCreate_v2(byref(array), byref(Array(64, 64, 0, FLOAT, 1, flags))))


def create(resource, shown=None, how=texture):
    return cuda.cuTexObjectCreate(byref(made), byref(resource), how, shown)


flat = Resource(0, (c_ulonglong * 16)(arrays[0].value))
memory = alloc(4096)


def linear(at, size, channels=1):
    return Resource(2, (c_ulonglong * 16)(at, FLOAT | channels << 32, size))


show(
    create(linear(memory.value, 4096)),
    create(linear(memory.value + 4, 64)),
    create(linear(memory.value, 8192)),
    create(linear(memory.value, 64, 3)),
    create(linear(memory.value, 64), view),
    create(Resource(9)),
)
pitched = Resource(3, (c_ulonglong * 16)(memory.value, FLOAT | 1 << 32, 16, 8, 64))
narrow = Resource(3, (c_ulonglong * 16)(memory.value, FLOAT | 1 << 32, 17, 8, 64))
show(
    create(pitched), create(narrow), create(Resource(0)), create(flat, how=(c_uint * 26)(9))
)
show(create(flat, view))
seen = Resource()
shown = (c_ulonglong * 14)()
show(
    cuda.cuTexObjectGetResourceDesc(byref(seen), made),
    seen.body[0] == arrays[0].value,
    cuda.cuTexObjectGetResourceViewDesc(shown, made),
    list(shown[:3]),
    cuda.cuTexObjectGetTextureDesc((c_uint * 26)(), made),
    cuda.cuSurfObjectDestroy(made),
)
show(
    cuda.cuTexObjectDestroy(made),
    cuda.cuTexObjectDestroy(made),
    cuda.cuTexObjectGetResourceDesc(byref(seen), made),
)
surface = Resource(0, (c_ulonglong * 16)(arrays[1].value))
show(
    cuda.cuSurfObjectCreate(byref(made), byref(flat)),
    cuda.cuSurfObjectCreate(byref(made), byref(surface)),
    cuda.cuSurfObjectGetResourceDesc(byref(seen), made),
    cuda.cuTexObjectDestroy(made),
    cuda.cuSurfObjectDestroy(made),
)
""",
    ) == ["0 1 1 1 1 1", "0 1 400 1", "0", "0 True 0 [7, 64, 64] 0 1", "0 1 1", "1 0 0 1 0"]
