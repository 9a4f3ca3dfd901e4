"""Stream-ordered memory of the stand-in driver, as an H100 with driver 580.159 answered."""

from tests.native.driver_program import Program, lines_after
from tests.native.machine import Machine

POOL = """
POOL, MIB = c_void_p(), 1 << 20
ok(cuda.cuDeviceGetDefaultMemPool(byref(POOL), 0))


def attribute(number):
    value = c_uint64()
    ok(cuda.cuMemPoolGetAttribute(POOL, number, byref(value)))
    return value.value // MIB


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value // MIB


at_first = free_mib()


def state(what):
    # What the card has less than at first, what the pool has of it, and what of that is used.
    show(what, at_first - free_mib(), attribute(5), attribute(7))


def take(at=stream):
    made = c_uint64()
    ok(cuda.cuMemAllocAsync(byref(made), c_size_t(512 * MIB), at))
    return made


def turn(at=stream):
    ok(cuda.cuMemFreeAsync(take(at), at))


event, other = c_void_p(), c_void_p()
ok(cuda.cuEventCreate(byref(event), 0))
ok(cuda.cuStreamCreate(byref(other), 1))
"""
lines = lines_after(POOL)


def test_a_pool_holds_what_was_freed_until_somebody_waits(machine: Machine) -> None:
    assert lines(
        machine,
        """
made = take()
state("taken")
ok(cuda.cuMemFreeAsync(made, stream))
state("freed")
ok(cuda.cuStreamSynchronize(stream))
state("synchronised")
turn()
ok(cuda.cuStreamQuery(stream))
ok(cuda.cuEventRecord(event, stream))
ok(cuda.cuEventQuery(event))
state("recorded")
ok(cuda.cuEventSynchronize(event))
state("event")
turn()
ok(cuda.cuMemPoolTrimTo(POOL, c_size_t(0)))
state("trimmed")
ok(cuda.cuCtxSynchronize())
state("context")
ok(cuda.cuMemFree_v2(take()))
state("at-once")
""",
    ) == [
        "taken 512 512 512",
        "freed 512 512 0",
        "synchronised 0 0 0",
        "recorded 512 512 0",
        "event 0 0 0",
        "trimmed 512 512 0",
        "context 0 0 0",
        "at-once 0 0 0",
    ]


def test_allocations_from_the_pool_have_it_again_and_no_others(machine: Machine) -> None:
    assert lines(
        machine,
        """
for _ in range(4):
    turn()
state("one-stream")
for _ in range(4):
    at = c_void_p()
    ok(cuda.cuStreamCreate(byref(at), 1))
    turn(at)
state("four-streams")
alloc(512 * MIB)
state("block")
""",
    ) == ["one-stream 512 512 0", "four-streams 512 512 0", "block 1024 512 0"]


def test_waiting_is_for_what_was_freed_before_in_that_stream(machine: Machine) -> None:
    # The card was only asked of the stream itself; this is the strictest reading.
    assert lines(
        machine,
        """
ok(cuda.cuEventRecord(event, stream))
turn()
ok(cuda.cuEventSynchronize(event))
ok(cuda.cuStreamSynchronize(other))
state("others")
ok(cuda.cuStreamSynchronize(None))
state("legacy")
""",
    ) == ["others 512 512 0", "legacy 0 0 0"]


def test_below_the_threshold_a_pool_keeps_it_until_it_is_trimmed(machine: Machine) -> None:
    assert lines(
        machine,
        """
value = c_uint64(128 * MIB)
ok(cuda.cuMemPoolSetAttribute(POOL, 4, byref(value)))
turn()
ok(cuda.cuStreamSynchronize(stream))
state("waited")
ok(cuda.cuMemPoolTrimTo(POOL, c_size_t(0)))
state("trimmed")
""",
    ) == ["waited 128 128 0", "trimmed 0 0 0"]


def test_a_pool_can_keep_streams_apart(machine: Machine) -> None:
    assert lines(
        machine,
        """
value = ctypes.c_int(0)
ok(cuda.cuMemPoolSetAttribute(POOL, 2, byref(value)))
turn()
turn()
turn(other)
state("apart")
ok(cuda.cuMemPoolGetAttribute(POOL, 2, byref(value)))
show(value.value)
""",
    ) == ["apart 1024 1024 0", "0"]


def test_the_default_pool_of_a_device_is_found_by_its_place(machine: Machine) -> None:
    assert Program(
        machine,
        """
class Place(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


pool, same = c_void_p(), c_void_p()
get = cuda.cuMemGetDefaultMemPool
show(get(byref(pool), byref(Place(1, 0)), 1), get(byref(same), byref(Place(2, 0)), 1))
show(get(byref(same), byref(Place(1, 0)), 9), get(byref(same), byref(Place(1, 9)), 1))
ok(cuda.cuDeviceGetDefaultMemPool(byref(same), 0))
show(same.value == pool.value)
""",
    ).rest() == ["0 801", "1 101", "True"]
