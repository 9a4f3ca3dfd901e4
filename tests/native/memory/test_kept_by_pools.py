"""Freed memory is charged as long as a pool holds it, until the program waits for it."""

import pytest

from tests.native.machine import MIB, Container, Machine
from tests.native.memory.stream_program import LIMIT, program

HALF = LIMIT // 2


def test_a_slice_is_not_held_in_pools_and_by_blocks_as_well(
    container: Container, machine: Machine
) -> None:
    # Freed memory stays with its pool, and cuMemAlloc gets other memory of the card.
    lines = program(
        container,
        """
made = c_uint64()
for _ in range(3):
    ok(cuda.cuMemFreeAsync(held(LIMIT), stream))
    result = cuda.cuMemAlloc_v2(byref(made), c_size_t(LIMIT))
    show(result, free_mib())
    ok(cuda.cuMemFree_v2(made))
""",
    ).rest()
    # Not refused either: the pool's memory is released first.
    assert lines == ["0 0"] * 3
    assert machine.peak() == LIMIT


@pytest.mark.parametrize("threshold", [0, 1 << 62])
def test_every_pool_lets_go_before_another_is_refused(
    container: Container, machine: Machine, threshold: int
) -> None:
    lines = program(
        container,
        f"""
properties = (c_uint32 * 22)(1, 0, 1, 0)
for _ in range(3):
    pool, made, value = c_void_p(), c_uint64(), c_uint64({threshold})
    ok(cuda.cuMemPoolCreate(byref(pool), properties))
    ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(value)))
    at = new_stream()
    show(cuda.cuMemAllocFromPoolAsync(byref(made), c_size_t(LIMIT), pool, at), free_mib())
    ok(cuda.cuMemFreeAsync(made, at))
    ok(cuda.cuStreamDestroy_v2(at))
""",
    ).rest()
    assert lines == ["0 0"] * 3
    assert machine.peak() == LIMIT


NO_WAIT = [
    "cuda.cuStreamQuery(stream)",
    "cuda.cuEventRecord(event, stream)",
    "cuda.cuEventQuery(event)",
    "cuda.cuMemPoolTrimTo(pool, c_size_t(0))",
    "cuda.cuStreamSynchronize(other)",
]
WAIT = [
    "cuda.cuStreamSynchronize(stream)",
    "cuda.cuStreamSynchronize(None)",
    "cuda.cuCtxSynchronize()",
    "cuda.cuEventSynchronize(event)",
    "cuda.cuMemPoolDestroy(pool)",
]
FREED = """
pool, event = c_void_p(), c_void_p()
properties = (c_uint32 * 22)(1, 0, 1, 0)
ok(cuda.cuMemPoolCreate(byref(pool), properties))
made = c_uint64()
ok(cuda.cuMemAllocFromPoolAsync(byref(made), c_size_t(LIMIT), pool, stream))
ok(cuda.cuMemFreeAsync(made, stream))
ok(cuda.cuEventCreate(byref(event), 0))
ok(cuda.cuEventRecord(event, stream))
"""


@pytest.mark.parametrize("call", NO_WAIT)
def test_it_stays_charged_where_nothing_waits(
    container: Container, machine: Machine, call: str
) -> None:
    first = program(container, FREED + f"ok({call})\nshow(free_mib())\nwait()\n")
    assert first.line() == "0"
    assert machine.used_bytes() == LIMIT
    assert program(container, "show(take(1)[0])\n").rest() == ["2"]
    assert machine.used_bytes() == LIMIT
    first.go_on()
    assert first.rest() == []


@pytest.mark.parametrize("call", WAIT)
def test_waiting_gives_it_back_to_the_container(
    container: Container, machine: Machine, call: str
) -> None:
    first = program(container, FREED + f"ok({call})\nshow('waited')\nwait()\n")
    assert first.line() == "waited"
    assert machine.used_bytes() == 0
    assert program(container, "show(take(LIMIT)[0])\n").rest() == ["0"]
    first.go_on()
    assert first.rest() == []


def test_allocations_in_any_stream_have_it_again(container: Container, machine: Machine) -> None:
    lines = program(
        container,
        """
for _ in range(4):
    at = new_stream()
    ok(cuda.cuMemFreeAsync(held(LIMIT // 2, at), at))
show(free_mib())
made = held(LIMIT // 4)
show(free_mib(), take(LIMIT // 4, other)[0], free_mib())
ok(cuda.cuMemFreeAsync(made, stream))
ok(cuda.cuCtxSynchronize())
show(free_mib())
""",
    ).rest()
    assert lines == ["50", "50 0 50", "75"]
    assert machine.peak() == HALF


def test_a_pool_that_forbids_it_is_not_counted_on_to_have_it_again(
    container: Container, machine: Machine
) -> None:
    # CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: off, each stream gets its own memory.
    lines = program(
        container,
        """
pool, off = c_void_p(), c_uint32(0)
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
ok(cuda.cuMemPoolSetAttribute(pool, 2, byref(off)))
for at in (stream, other):
    ok(cuda.cuMemFreeAsync(held(LIMIT // 4, at), at))
show(free_mib())
ok(cuda.cuMemFreeAsync(held(LIMIT // 4, other), other))
show(free_mib())
for _ in range(4):
    at = new_stream()
    ok(cuda.cuMemFreeAsync(held(LIMIT, at), at))
    show(free_mib())
ok(cuda.cuCtxSynchronize())
made = held(LIMIT)
show(free_mib())
""",
    ).rest()
    assert lines == ["50", "50", "0", "0", "0", "0", "0"]
    assert machine.peak() == LIMIT


def test_a_block_of_a_pool_that_is_freed_at_once_goes_at_once(
    container: Container, machine: Machine
) -> None:
    first = program(container, "ok(cuda.cuMemFree_v2(held(LIMIT)))\nshow('freed')\nwait()\n")
    assert first.line() == "freed"
    assert machine.used_bytes() == 0
    assert program(container, "show(take(LIMIT)[0])\n").rest() == ["0"]
    first.go_on()
    assert first.rest() == []


def test_below_the_threshold_waiting_gives_nothing_back(
    container: Container, machine: Machine
) -> None:
    lines = program(
        container,
        """
pool, value = c_void_p(), c_uint64(LIMIT // 4)
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(value)))
ok(cuda.cuMemFreeAsync(held(LIMIT // 2), stream))
ok(cuda.cuCtxSynchronize())
show(free_mib())
ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
show(free_mib())
""",
    ).rest()
    assert lines == ["75", "100"]
    assert machine.used_bytes() == 0


def test_nvml_shows_it_as_used(container: Container) -> None:
    container.limit(LIMIT)
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    token = client.call("take", kind="stream-ordered", bytes=32 * MIB)["token"]
    assert client.call("give_back", token=token) == {"result": 0}
    assert client.nvml("nvmlDeviceGetMemoryInfo", 0)["used"] == 32 * MIB
    assert client.call("synchronize") == {"result": 0}
    assert client.nvml("nvmlDeviceGetMemoryInfo", 0)["used"] == 0
