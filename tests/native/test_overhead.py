"""What the driver takes for itself (contexts, modules) is charged where NVML shows it."""

import struct
import time

import pytest

from tests.native.context_makers import KINDS as CONTEXTS
from tests.native.machine import MIB, Client, Container, Machine

CONTEXT, MODULE = 64 * MIB, 2 * MIB
LIMIT = 100 * MIB


@pytest.fixture
def costly(machine: Machine, container: Container) -> Container:
    machine.settings |= {"context_mib": CONTEXT // MIB, "module_kib": MODULE // 1024}
    machine.write()
    container.limit(LIMIT)
    return container


def opened(container: Container) -> Client:
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    return client


def context_bytes(container: Container) -> int:
    """Of the first slot of the region, as a monitor reads it."""
    return int(struct.unpack_from("<Q", container.region.read_bytes(), 1856 + 8)[0])


def test_starting_makes_no_context(machine: Machine, costly: Container) -> None:
    # Others find out their own pid by making one: 0.3 s per process, and memory of the card.
    client = costly.start()
    assert client.call("init") == {"result": 0}
    assert client.call("total_mem") == {"result": 0, "total": LIMIT}
    assert client.nvml("nvmlDeviceGetMemoryInfo", 0)["total"] == LIMIT
    assert machine.used() == 0


def test_a_context_is_charged_from_its_beginning_to_its_end(costly: Container) -> None:
    client = opened(costly)
    assert client.info() == (LIMIT - CONTEXT, LIMIT)
    assert context_bytes(costly) == CONTEXT
    assert client.alloc(LIMIT - CONTEXT)[0] == 0
    assert client.alloc(1)[0] == 2
    assert client.call("destroy_context") == {"result": 0}
    assert context_bytes(costly) == 0
    assert opened(costly).info() == (LIMIT - CONTEXT, LIMIT)


@pytest.mark.parametrize("how", CONTEXTS)
def test_every_way_of_making_a_context_is_charged_until_it_ends(
    machine: Machine, costly: Container, how: str
) -> None:
    costly.limit(4 * LIMIT)
    client = opened(costly)
    left = 4 * LIMIT - CONTEXT
    assert client.call("further_context", how=how, bytes=MIB) == {
        "result": 0,
        "made": left - CONTEXT,
        "held": left - CONTEXT - MIB,
        "ended": left,
    }
    assert machine.used() == CONTEXT


def test_retaining_a_context_again_costs_nothing(costly: Container) -> None:
    client = opened(costly)
    assert client.call("open_device") == {"result": 0}
    assert client.info() == (LIMIT - CONTEXT, LIMIT)
    assert client.call("destroy_context") == {"result": 0}
    assert client.info() == (LIMIT - CONTEXT, LIMIT)


def test_each_process_pays_for_its_own_context(costly: Container) -> None:
    first = opened(costly)
    second = opened(costly)
    # Two contexts are more than the slice; the card has them, so nothing else fits.
    assert first.info() == (0, LIMIT)
    assert second.alloc(1)[0] == 2
    second.kill()
    assert first.alloc(LIMIT - CONTEXT)[0] == 0


def test_modules_are_charged_with_the_next_allocation_at_the_latest(costly: Container) -> None:
    client = opened(costly)
    assert client.call("launch", kernels=1) == {"result": 0}
    deadline = time.monotonic() + 30
    while client.info()[0] != LIMIT - CONTEXT - MODULE:
        assert time.monotonic() < deadline, client.info()
        result, pointer = client.alloc(512)
        assert result == 0
        assert client.free(pointer) == 0


def test_where_nvml_shows_other_pids_blocks_alone_are_charged(
    machine: Machine, costly: Container
) -> None:
    machine.settings["pid_offset"] = 100_000
    machine.write()
    client = opened(costly)
    assert client.info() == (LIMIT, LIMIT)
    assert client.alloc(LIMIT)[0] == 0
