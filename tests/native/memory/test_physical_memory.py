"""Physical memory is charged to the device that it lies on, which need not be the current one."""

import pytest

from tests.native.machine import CARDS, MIB, Container, Machine, open_context

DEVICE, HOST = 1, 2
OUT_OF_MEMORY = 2


def limit_both(container: Container) -> None:
    lines = [
        f"device {card} memory_bytes {size * MIB} core_percent 0\n"
        for card, size in zip(CARDS, (4, 8), strict=True)
    ]
    container.limits("hami-limits 1\n" + "".join(lines))


def test_the_device_is_that_of_the_place(container: Container, machine: Machine) -> None:
    limit_both(container)
    client = open_context(container.start())
    made = client.call("create", bytes=8 * MIB, place=DEVICE, ordinal=1)
    assert made["result"] == 0
    assert (machine.used_bytes(0), machine.used_bytes(1)) == (0, 8 * MIB)
    assert client.info() == (4 * MIB, 4 * MIB)
    assert open_context(client, 1).info() == (0, 8 * MIB)
    again = client.call("create", bytes=2 * MIB, place=DEVICE, ordinal=1)
    assert again["result"] == OUT_OF_MEMORY
    assert client.free(made["pointer"], how="create") == 0
    assert client.info() == (8 * MIB, 8 * MIB)


def test_no_context_is_needed(container: Container, machine: Machine) -> None:
    limit_both(container)
    client = container.start()
    assert client.call("init") == {"result": 0}
    assert client.call("create", bytes=4 * MIB, place=DEVICE, ordinal=0)["result"] == 0
    refused = client.call("create", bytes=2 * MIB, place=DEVICE, ordinal=0)
    assert refused["result"] == OUT_OF_MEMORY
    assert machine.used_bytes(0) == 4 * MIB


@pytest.mark.parametrize("ordinal", [-1, 2, 16, 63, 64, 1 << 30])
def test_a_device_that_is_not_there_is_the_drivers_to_refuse(
    container: Container, machine: Machine, ordinal: int
) -> None:
    limit_both(container)
    client = open_context(container.start())
    bare = open_context(machine.start(machine.env()))
    wanted = {"bytes": 2 * MIB, "place": DEVICE, "ordinal": ordinal}
    answer = client.call("create", **wanted)
    assert answer == bare.call("create", **wanted)
    assert answer["result"] not in (0, OUT_OF_MEMORY)
    assert client.info() == (4 * MIB, 4 * MIB)
    assert client.alloc(4 * MIB)[0] == 0


def test_memory_of_the_host_is_not_charged(container: Container, machine: Machine) -> None:
    limit_both(container)
    client = open_context(container.start())
    bare = open_context(machine.start(machine.env()))
    wanted = {"bytes": 16 * MIB, "place": HOST, "ordinal": 0}
    assert client.call("create", **wanted)["result"] == bare.call("create", **wanted)["result"]
    assert client.info() == (4 * MIB, 4 * MIB)
