"""A container's slice of memory: seen, kept to the byte, never exceeded, however asked for."""

import subprocess
import sys

import pytest

from tests.native.machine import CARDS, MIB, Container, Machine, open_context
from tests.waiting import PATIENCE_S

OUT_OF_MEMORY, INVALID_VALUE, POISON = 2, 1, 0xDEAD


def test_the_limit_is_exact_to_the_byte(container: Container) -> None:
    container.limit(100 * MIB + 1)
    client = open_context(container.start())
    assert client.info() == (100 * MIB + 1, 100 * MIB + 1)
    assert client.alloc(100 * MIB)[0] == 0
    assert client.info() == (1, 100 * MIB + 1)
    assert client.alloc(2) == (OUT_OF_MEMORY, POISON)
    result, last = client.alloc(1)
    assert result == 0
    assert client.alloc(1) == (OUT_OF_MEMORY, POISON)
    assert client.free(last) == 0
    assert client.alloc(1)[0] == 0


def test_without_a_limit_the_whole_card_is_there(container: Container, machine: Machine) -> None:
    client = open_context(container.start())
    assert client.info() == (8192 * MIB, 8192 * MIB)
    assert client.alloc(8192 * MIB)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize(
    "how", ["alloc", "managed", "pitch", "async", "async_ptsz", "pool", "create"]
)
def test_every_allocator_is_held_to_the_slice(
    container: Container, machine: Machine, how: str
) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    result, pointer = client.alloc(8 * MIB, how=how)
    assert result == 0
    assert client.info() == (2 * MIB, 10 * MIB)
    assert client.alloc(4 * MIB, how=how) == (OUT_OF_MEMORY, POISON)
    assert machine.used_bytes() == 8 * MIB
    assert client.free(pointer, how=how if how == "create" else "free") == 0
    assert client.info() == (10 * MIB, 10 * MIB)
    assert machine.used_bytes() == 0


@pytest.mark.parametrize(
    ("how", "by"), [("alloc", "async"), ("async", "free"), ("managed", "async")]
)
def test_a_block_may_be_freed_by_the_other_interface(
    container: Container, how: str, by: str
) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    pointer = client.alloc(10 * MIB, how=how)[1]
    assert client.free(pointer, how=by) == 0
    assert client.info()[0] == 10 * MIB


def test_an_unknown_pointer_goes_to_the_driver(container: Container, machine: Machine) -> None:
    container.limit(10 * MIB)
    with_library, without = (
        open_context(container.start()),
        open_context(machine.start(machine.env())),
    )
    for pointer in (0, 4096, 0x7F0000000000):
        assert with_library.free(pointer) == without.free(pointer)
    assert with_library.free(4096) == INVALID_VALUE
    block = with_library.alloc(MIB)[1]
    assert with_library.free(block) == 0
    assert with_library.free(block) == INVALID_VALUE
    assert with_library.info()[0] == 10 * MIB


def test_when_the_card_itself_is_full_the_reservation_is_given_back(
    container: Container, machine: Machine
) -> None:
    neighbour = open_context(machine.start(machine.env()))
    held = neighbour.alloc(8190 * MIB)[1]
    container.limit(100 * MIB)
    client = open_context(container.start())
    assert client.info() == (2 * MIB, 100 * MIB)
    assert client.alloc(3 * MIB) == (OUT_OF_MEMORY, POISON)
    assert neighbour.free(held) == 0
    assert client.alloc(100 * MIB)[0] == 0


def test_missing_outputs_do_not_crash(container: Container) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.call("info", nulls=True) == {"result": 0}


def test_total_memory_is_the_slice(container: Container) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.call("total_mem", ordinal=0) == {"result": 0, "total": 10 * MIB}
    assert client.call("total_mem", ordinal=1) == {"result": 0, "total": 0}


def test_a_limit_beyond_the_card_shows_the_card(container: Container) -> None:
    container.limit(1 << 40)
    client = open_context(container.start())
    assert client.info() == (8192 * MIB, 8192 * MIB)


def test_a_destroyed_context_gives_its_memory_back(container: Container, machine: Machine) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    answer = client.call("own_context", bytes=6 * MIB)
    assert answer["result"] == 0
    assert answer["held"]["free"] == 4 * MIB
    assert client.info() == (10 * MIB, 10 * MIB)
    assert machine.used_bytes() == 0


def test_the_last_release_of_the_primary_context_gives_its_memory_back(
    container: Container,
) -> None:
    container.limit(10 * MIB)
    client = open_context(open_context(container.start()))
    assert client.alloc(6 * MIB)[0] == 0
    assert client.call("destroy_context") == {"result": 0}
    assert client.info()[0] == 4 * MIB
    assert client.call("destroy_context") == {"result": 0}
    assert open_context(client).info() == (10 * MIB, 10 * MIB)


@pytest.mark.parametrize("size", [0, 1 << 63, (1 << 64) - 1])
def test_absurd_sizes_leave_everything_as_it_was(container: Container, size: int) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.alloc(size)[0] in (INVALID_VALUE, OUT_OF_MEMORY)
    assert client.info() == (10 * MIB, 10 * MIB)


@pytest.mark.parametrize("how", ["alloc", "pitch"])
def test_an_oversubscribed_container_gets_host_memory_when_the_card_is_full(
    container: Container, machine: Machine, how: str
) -> None:
    neighbour = open_context(machine.start(machine.env()))
    assert neighbour.alloc(8190 * MIB)[0] == 0
    client = open_context(
        container.start(CUDA_OVERSUBSCRIBE="true", CUDA_DEVICE_MEMORY_LIMIT_0="9g")
    )
    assert client.info() == (9216 * MIB, 9216 * MIB)
    assert client.call("total_mem", ordinal=0) == {"result": 0, "total": 9216 * MIB}
    result, pointer = client.alloc(100 * MIB, how=how)
    assert result == 0
    assert client.info() == (9116 * MIB, 9216 * MIB)
    assert client.alloc(9117 * MIB, how=how)[0] == OUT_OF_MEMORY
    assert client.free(pointer) == 0
    assert client.info() == (9216 * MIB, 9216 * MIB)
    assert machine.used_bytes() == 8190 * MIB


def test_without_oversubscription_a_full_card_refuses(
    container: Container, machine: Machine
) -> None:
    neighbour = open_context(machine.start(machine.env()))
    assert neighbour.alloc(8190 * MIB)[0] == 0
    client = open_context(
        container.start(CUDA_OVERSUBSCRIBE="false", CUDA_DEVICE_MEMORY_LIMIT_0="9g")
    )
    assert client.info() == (2 * MIB, 8192 * MIB)
    assert client.alloc(100 * MIB) == (OUT_OF_MEMORY, POISON)


def test_a_mig_instance_is_known_by_its_own_number(container: Container) -> None:
    # CUDA gives only the number; the file has NVML's name of the instance.
    container.limits(
        f"hami-limits 1\ndevice MIG-{CARDS[0][4:]} memory_bytes {4 * MIB} core_percent 0\n"
    )
    client = open_context(container.start())
    assert client.info() == (4 * MIB, 4 * MIB)
    assert client.alloc(4 * MIB + 1)[0] == OUT_OF_MEMORY


START = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value, "libnvidia-ml" in open("/proc/self/maps").read())
"""


def test_a_limits_file_makes_nvml_needless_at_the_start(container: Container) -> None:
    container.limit(4 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == f"{4 * MIB} False\n"


def test_sixty_four_devices_may_be_listed(container: Container) -> None:
    others = "".join(
        f"device GPU-{i:08d}-0000-0000-0000-000000000000 memory_bytes {MIB} core_percent 0\n"
        for i in range(63)
    )
    mine = f"device {CARDS[0]} memory_bytes {4 * MIB} core_percent 0\n"
    container.limits("hami-limits 1\n" + mine + others)
    assert open_context(container.start()).info()[1] == 4 * MIB
    container.limits("hami-limits 1\n" + others + mine)
    assert open_context(container.start()).info()[1] == 4 * MIB
    # A sixty-fifth line has no place: that card may not be used.
    container.limits(f"hami-limits 1\ndevice {CARDS[1]} memory_bytes 0\n" + others + mine)
    assert open_context(container.start()).alloc(1)[0] == OUT_OF_MEMORY
