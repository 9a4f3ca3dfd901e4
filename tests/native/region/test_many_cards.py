"""Sixty-four cards in one container: HAMi's layout has sixteen places, banks behind it more."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hami_node_agent.usage.regions.reader import read_region

from tests.native.machine import MIB, Client, Container, Machine
from tests.native.region.test_layout import BANK

OUT_OF_MEMORY = 2
CARDS = [f"GPU-{number:08d}-0000-0000-0000-00000000abcd" for number in range(64)]
# The edges of the banks, and one in the midst of the third.
PICKED = (0, 15, 16, 31, 40, 63)
LIMIT_AT, PROCESSES_AT = 1600, 2008896


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine.with_cards(tmp_path, CARDS)
    yield made
    for client in made.clients:
        client.end()


@pytest.fixture
def container(machine: Machine) -> Container:
    container = Container(machine, machine.folder)
    container.limits("hami-limits 1\npolicy force\n" + "".join(map(line, range(64))))
    return container


def slice_of(card: int) -> int:
    return (card + 1) * MIB


def line(card: int) -> str:
    return f"device {CARDS[card]} memory_bytes {slice_of(card)} core_percent 50\n"


def on(client: Client, card: int) -> Client:
    assert client.call("open_device", ordinal=card) == {"result": 0}
    return client


def test_every_card_has_its_own_limit_and_all_processes_count_together(
    container: Container, machine: Machine
) -> None:
    one, two = container.start(), container.start()
    for card in PICKED:
        assert on(one, card).alloc(slice_of(card) - MIB // 2)[0] == 0
    for card in PICKED:
        assert on(two, card).info() == (MIB // 2, slice_of(card))
        assert two.alloc(MIB)[0] == OUT_OF_MEMORY
        assert machine.used_bytes(card) == slice_of(card) - MIB // 2
        shown = two.nvml("nvmlDeviceGetMemoryInfo", card)
        assert (shown["total"], shown["free"]) == (slice_of(card), MIB // 2)
    one.kill()
    for card in PICKED:
        assert on(two, card).alloc(slice_of(card))[0] == 0
        assert machine.used_bytes(card) == slice_of(card)


def test_racing_processes_never_exceed_the_slice_of_the_last_card(
    container: Container, machine: Machine
) -> None:
    clients = [on(container.start(), 63) for _ in range(4)]
    machine.ctl("reset-peak")
    for client in clients:
        client.send("churn", bytes=4_000_001, rounds=20)
    assert sum(client.receive()["refused"] for client in clients) == 4 * 20
    assert 0 < machine.peak(63) <= slice_of(63)
    assert machine.used_bytes(63) == 0
    assert clients[0].info() == (slice_of(63), slice_of(63))


def test_launches_on_the_last_card_are_charged_to_it_alone(container: Container) -> None:
    client = on(container.start(), 63)
    assert client.call("launch", kernels=30) == {"result": 0}
    content = container.region.read_bytes()
    # slots[1].util[15].spare[0], until when the device's time is paid for: in the last bank only.
    paid_at = 1856 + 1960 + 1160 + 15 * 48 + 24
    paid = [struct.unpack_from("<q", content, bank * BANK + paid_at)[0] for bank in range(4)]
    assert paid[:3] == [0, 0, 0]
    assert paid[3] > 0


def test_readers_of_hamis_layout_see_sixteen_and_the_banks_the_others(container: Container) -> None:
    client = on(container.start(), 40)
    assert client.alloc(MIB)[0] == 0
    content = container.region.read_bytes()
    assert len(content) == 4 * BANK
    for bank in range(4):
        head = content[bank * BANK :]
        assert struct.unpack_from("<Q", head, 56) == (16,)
        for place in range(16):
            card = 16 * bank + place
            assert head[64 + 96 * place :][:96] == CARDS[card].encode().ljust(96, b"\0")
            assert struct.unpack_from("<Q", head, LIMIT_AT + 8 * place) == (slice_of(card),)
    # slots[0].mem[8].total_bytes of the third bank; only the first counts processes.
    assert struct.unpack_from("<Q", content, 2 * BANK + 1856 + 8 + 8 * 64 + 32) == (MIB,)
    assert struct.unpack_from("<i", content, PROCESSES_AT) == (1,)
    assert struct.unpack_from("<i", content, BANK + PROCESSES_AT) == (0,)
    reading = read_region(container.region)
    assert reading
    assert [card.uuid for card in reading.region.cards] == CARDS
    assert [held.total_bytes for held in reading.region.processes[0].held][40:42] == [MIB, 0]


def test_a_monitor_may_lower_the_limit_of_the_last_card_but_not_raise_it(
    container: Container,
) -> None:
    client = on(container.start(), 63)
    for written, seen in ((MIB, MIB), (1 << 40, slice_of(63)), (0, slice_of(63))):
        with container.region.open("r+b") as file:
            file.seek(3 * BANK + LIMIT_AT + 8 * 15)
            file.write(struct.pack("<Q", written))
        assert client.info()[1] == seen


def test_what_a_tenant_writes_into_a_bank_wins_it_nothing(
    container: Container, machine: Machine
) -> None:
    client = on(container.start(), 63)
    assert client.alloc(slice_of(63))[0] == 0
    with container.region.open("r+b") as file:
        file.seek(BANK)
        file.write(bytes(3 * BANK))
    assert client.alloc(MIB)[0] == OUT_OF_MEMORY
    for _ in range(10_000):  # it looks every 10 ms at most
        if client.info()[0] == 0:
            break
    other = on(container.start(), 63)
    assert other.alloc(MIB)[0] == OUT_OF_MEMORY
    assert machine.used_bytes(63) == slice_of(63)


def test_variables_are_read_for_every_card(container: Container) -> None:
    (container.folder / "hami/limits").unlink()
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_MEMORY_LIMIT_63": "7m"}
    client = container.start(**env)
    assert on(client, 63).info()[1] == 7 * MIB
    assert on(client, 62).info()[1] == 1024 * MIB


def test_a_region_as_long_as_hamis_is_made_longer(container: Container) -> None:
    container.region.write_bytes(bytes(2008953))
    assert on(container.start(), 63).info()[1] == slice_of(63)
    assert container.region.stat().st_size == 4 * BANK
