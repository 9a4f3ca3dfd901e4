"""Memory that is mapped into tiles of sparse arrays is charged as long as the card holds it."""

import pytest

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container

LIMIT = 16 * MIB
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
    container.limit(LIMIT)
    shown = TILES + body + "\nshow(used_mib())\nsys.stdin.readline()"
    env = container.env(FAKEGPU_VISIBLE_DEVICES="0")
    with Program(container.machine, shown, env=env) as program:
        assert program.line() == str(left_mib)
        assert container.machine.used() == left_mib * MIB
        assert program.rest() == []
