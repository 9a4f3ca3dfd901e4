"""Green contexts of the stand-in driver: a part of a card's multiprocessors."""

from tests.native.driver_program import Program
from tests.native.fakegpu.green_program import GREEN
from tests.native.machine import MIB, Machine


def test_multiprocessors_are_split_into_groups_of_what_the_card_allows(machine: Machine) -> None:
    program = Program(
        machine,
        GREEN
        + """
show(whole.count, split(None, 0, 16), split(None, 0, 17), split(None, 0, 0), split(None, 0, 200))
groups, left = (Resource * 9)(), Resource()
show(split(groups, 4, 20, byref(left)), [g.count for g in groups[:5]], left.count)
show(split(groups, 9, 54, byref(left)), left.type, cuda.cuDeviceGetDevResource(0, byref(left), 9))
forged = Resource(type=1, count=8)
show(split(None, 0, 4, of=forged)[0], described(forged)[0], described(whole, whole)[0])
show(described(groups[0], groups[1])[0])
""",
    )
    assert program.rest() == [
        "108 (0, 6) (0, 6) (0, 27) (915, 0)",
        "(0, 4) [20, 20, 20, 20, 0] 28",
        "(0, 2) 0 914",
        "915 915 915",
        "0",
    ]


def test_kernels_of_a_green_context_take_as_long_as_its_multiprocessors_let_them(
    machine: Machine,
) -> None:
    program = Program(
        machine,
        GREEN
        + """
quarter = (Resource * 4)()
show(split(quarter, 4, 26)[0], quarter[0].count)
result, description = described(quarter[0])
green, made, own_stream = c_void_p(), c_void_p(), c_void_p()
forged = ctypes.create_string_buffer(64)
create = cuda.cuGreenCtxCreate
show(create(byref(green), description, 1, 1), create(byref(green), forged, 0, 1))
ok(cuda.cuGreenCtxCreate(byref(green), description, 0, 1))
ok(cuda.cuCtxFromGreenCtx(byref(made), green))


def length_of(function, of):
    start, end, took = c_void_p(), c_void_p(), c_float()
    ok(cuda.cuEventCreate(byref(start), 0))
    ok(cuda.cuEventCreate(byref(end), 0))
    ok(cuda.cuEventRecord(start, of))
    ok(cuda.cuLaunchKernel(function, 21600 * 40, 1, 1, 1024, 1, 1, 0, of, None, None))
    ok(cuda.cuEventRecord(end, of))
    ok(cuda.cuEventSynchronize(end))
    ok(cuda.cuEventElapsedTime(byref(took), start, end))
    return took.value


all_of_it = length_of(kernel(), stream)
ok(cuda.cuCtxSetCurrent(made))
ok(cuda.cuStreamCreate(byref(own_stream), 1))
part = length_of(kernel(), own_stream)
# 200 ms and 830 ms of the card; a busy machine adds to both, and takes nothing away.
show(part > 2 * all_of_it, part > 800)
""",
    )
    assert program.rest() == ["0 26", "101 1", "True True"]


def test_memory_outlives_a_green_context_that_stays_current(machine: Machine) -> None:
    program = Program(
        machine,
        GREEN
        + """
group = (Resource * 1)()
split(group, 1, 26)
green, made, now = c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuGreenCtxCreate(byref(green), described(group[0])[1], 0, 1))
ok(cuda.cuCtxFromGreenCtx(byref(made), green))
ok(cuda.cuCtxPushCurrent_v2(made))
blocks = [alloc(8 << 20), alloc(8 << 20)]
ok(cuda.cuGreenCtxDestroy(green))
ok(cuda.cuCtxGetCurrent(byref(now)))
show(now.value == made.value, cuda.cuMemGetInfo_v2(None, None), cuda.cuCtxPushCurrent_v2(made))
show(cuda.cuGreenCtxDestroy(green), cuda.cuMemFree_v2(blocks[0]))
ok(cuda.cuCtxPopCurrent_v2(byref(now)))
show(now.value == made.value, cuda.cuMemFree_v2(blocks[0]))
sys.stdin.readline()
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
show("gone")
sys.stdin.readline()
""",
    )
    assert [program.line() for _ in range(3)] == ["True 709 201", "201 709", "True 0"]
    assert machine.used() == 8 * MIB
    program.go_on()
    assert program.line() == "gone"
    assert machine.used() == 0
    program.go_on()
    assert program.rest() == []
