"""Variables of modules, kernels' reserves and tiles of sparse arrays fit within the slice."""

import pytest

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container, Machine

LIMIT = 64 * MIB
COMMON = """
MIB = 1 << 20
STACK, PRINTF, HEAP = 0, 1, 2


def image(mib):
    return (
        b".version 6.0\\n.target sm_50\\n.global .align 4 .b8 array[%d];\\n" % max(mib * MIB, 4)
        + b".visible .entry idle()\\n{ ret; }\\n"
    )


def loaded(how, mib):
    made = c_void_p(0xDEAD)
    text = image(mib)
    if how == "cuModuleLoad" or how == "cuLibraryLoadFromFile":
        import os, tempfile

        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            name = file.name.encode()
            if how == "cuModuleLoad":
                return cuda.cuModuleLoad(byref(made), name), made
            return cuda.cuLibraryLoadFromFile(byref(made), name, None, None, 0, None, None, 0), made
    if how == "cuModuleLoadDataEx":
        return cuda.cuModuleLoadDataEx(byref(made), text, 0, None, None), made
    if how == "cuLibraryLoadData":
        return cuda.cuLibraryLoadData(byref(made), text, None, None, 0, None, None, 0), made
    return getattr(cuda, how)(byref(made), text), made


def unload(how, made):
    ok((cuda.cuLibraryUnload if "Library" in how else cuda.cuModuleUnload)(made))


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def limited(limit, value):
    return cuda.cuCtxSetLimit(limit, c_size_t(value))


def take(mib):
    made = c_uint64()
    return cuda.cuMemAlloc_v2(byref(made), c_size_t(mib * MIB))


how = sys.argv[1] if len(sys.argv) > 1 else ""
"""
LOADERS = [
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
]


def lines(container: Container, body: str, *arguments: str) -> list[str]:
    container.limit(LIMIT)
    return Program(container.machine, COMMON + body, *arguments, env=container.env()).rest()


@pytest.mark.parametrize("how", LOADERS)
def test_a_module_whose_variables_do_not_fit_is_refused(
    container: Container, machine: Machine, how: str
) -> None:
    # 128 MiB were loaded into a slice of 64, and charged only afterwards.
    assert lines(
        container,
        """
result, made = loaded(how, 128)
show(result, hex(made.value), free_mib())
result, made = loaded(how, 48)
show(result, free_mib(), take(17), take(16))
""",
        how,
    ) == ["2 0xdead 64", "0 16 2 0"]
    assert machine.used_bytes() == 0


@pytest.mark.parametrize("how", LOADERS)
def test_a_module_that_is_unloaded_is_free_at_once(container: Container, how: str) -> None:
    # The look that a load had made just before kept the next one off for 100 ms.
    assert lines(
        container,
        """
for _ in range(20):
    result, made = loaded(how, 48)
    before = free_mib()
    unload(how, made)
    show(result, before, free_mib())
show(take(64))
""",
        how,
    ) == ["0 16 64"] * 20 + ["0"]


def test_small_modules_load_where_the_slice_is_full(container: Container) -> None:
    assert lines(
        container,
        """
show(take(64), free_mib())
show(*(loaded("cuModuleLoadData", 0)[0] for _ in range(20)))
""",
    ) == ["0 0", " ".join("0" * 20)]


def test_heap_and_buffer_of_kernels_are_charged_beyond_the_drivers_own(
    container: Container,
) -> None:
    assert lines(
        container,
        """
show(limited(HEAP, 8 * MIB), limited(PRINTF, 1 * MIB), free_mib())
show(limited(HEAP, 108 * MIB), limited(PRINTF, 108 * MIB), free_mib())
value = c_size_t()
ok(cuda.cuCtxGetLimit(byref(value), HEAP))
show(value.value // MIB)
show(limited(HEAP, 48 * MIB), free_mib(), limited(PRINTF, 11 * MIB), free_mib())
show(take(15), limited(HEAP, 63 * MIB), limited(HEAP, 28 * MIB), free_mib(), take(34))
show(limited(HEAP, 4 * MIB), limited(PRINTF, 1 * MIB), free_mib())
show(limited(99, 1) != 0, limited(3, 4))
""",
    ) == ["0 0 64", "2 2 64", "8", "0 24 0 14", "2 2 0 34 0", "0 0 30", "True 0"]


def test_they_end_with_their_context(container: Container) -> None:
    assert lines(
        container,
        """
own = c_void_p()
ok(cuda.cuCtxCreate_v2(byref(own), 0, 0))
show(limited(HEAP, 68 * MIB), free_mib())
ok(cuda.cuCtxDestroy_v2(own))
ok(cuda.cuCtxSetCurrent(context))
show(free_mib(), limited(HEAP, 68 * MIB), free_mib())
""",
    ) == ["0 4", "64 0 4"]


def test_stacks_are_looked_up_after(container: Container) -> None:
    assert lines(container, "show(limited(STACK, 4096), free_mib())") == ["0 64"]


TILES_LIMIT = 16 * MIB
TILES = """
from tests.native.allocators.memory_allocators import create
from tests.native.allocators.object_allocators import FLOAT, SPARSE, TILE_POOL, Array3D, Tile

MAP, UNMAP, SIDE = 1, 2, 64
sparse = c_void_p()
ok(cuda.cuArray3DCreate_v2(byref(sparse), byref(Array3D(4 * SIDE, 2 * SIDE, 0, FLOAT, 4, SPARSE))))


def tiles(operation, memory, x=0, y=0, columns=1, rows=1):
    tile = Tile(resource=sparse, operation=operation, device_mask=1)
    tile.handle = memory.value if memory else 0
    tile.offsets[:] = (x * SIDE, y * SIDE, 0)
    tile.extents[:] = (columns * SIDE, rows * SIDE, 1)
    ok(cuda.cuMemMapArrayAsync(byref(tile), 1, None))


def mapped(**place):
    memory = create(2 << 20, usage=TILE_POOL)
    tiles(MAP, memory, **place)
    ok(cuda.cuMemRelease(memory))


def used_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return (total.value - free.value) >> 20

"""


@pytest.mark.parametrize(
    ("body", "left_mib"),
    [
        ("for _ in range(60):\n    mapped()\n    tiles(UNMAP, None)", 0),
        ("for _ in range(60):\n    mapped(columns=2)", 2),
        ("for x in range(4):\n    mapped(x=x)\ntiles(UNMAP, None, columns=4, rows=2)", 0),
        ("for x in range(4):\n    mapped(x=x)\nmapped(columns=2)", 6),
        ("mapped()\nmapped(y=1)\ntiles(UNMAP, None)\ntiles(UNMAP, None)", 2),
        ("mapped(columns=4)\ntiles(UNMAP, None)\ntiles(UNMAP, None)", 2),
        ("mapped()\nok(cuda.cuArrayDestroy(sparse))", 0),
        ("mapped()\ntiles(UNMAP, None)\nok(cuda.cuArrayDestroy(sparse))", 0),
    ],
    ids=[
        "unmapped",
        "mapped again",
        "unmapped together",
        "two mapped over by one",
        "one of two unmapped",
        "a part unmapped",
        "the array destroyed",
        "unmapped and the array destroyed",
    ],
)
def test_tiles_are_charged_until_their_memory_goes(
    container: Container, body: str, left_mib: int
) -> None:
    container.limit(TILES_LIMIT)
    shown = TILES + body + "\nshow(used_mib())\nsys.stdin.readline()"
    env = container.env(FAKEGPU_VISIBLE_DEVICES="0")
    with Program(container.machine, shown, env=env) as program:
        assert program.line() == str(left_mib)
        assert container.machine.used_bytes() == left_mib * MIB
        assert program.rest() == []
