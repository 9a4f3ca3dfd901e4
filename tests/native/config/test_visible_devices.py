"""Limits apply to the right card, however CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER reorder."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.compute.test_current_device import PAID_AT
from tests.native.machine import MIB, Client, Container, Machine

NO_DEVICE = 100
CARDS = [
    "GPU-aaaa0000-0000-0000-0000-000000000000",
    "GPU-aaaa1111-0000-0000-0000-000000000001",
    "GPU-bbbb2222-0000-0000-0000-000000000002",
    "GPU-cccc3333-0000-0000-0000-000000000003",
]
INSTANCES = [f"MIG-dddd4444-0000-0000-0000-00000000000{number}" for number in (0, 1)]
FASTEST_FIRST = [3, 1, 0, 2]
A, B, C, D = CARDS


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine.with_cards(tmp_path, CARDS)
    made.settings["cuda_order"] = FASTEST_FIRST
    made.write()
    yield made
    for client in made.clients:
        client.end()


@pytest.fixture
def container(machine: Machine) -> Container:
    return Container(machine, machine.folder)


def slice_of(card: int) -> int:
    return (card + 1) * MIB


def limit_all(container: Container) -> None:
    lines = [f"device {uuid} memory_bytes {slice_of(i)} core_percent 50\n" for i, uuid in LISTED]
    container.limits("hami-limits 1\npolicy force\n" + "".join(lines))


# The file's own order is neither NVML's nor CUDA's.
LISTED = [(2, C), (0, A), (3, D), (1, B)]
VARIABLES = {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{i + 1}m" for i in range(4)}

TABLE: list[tuple[str | None, str, list[int]]] = [
    (None, "FASTEST_FIRST", FASTEST_FIRST),
    (None, "PCI_BUS_ID", [0, 1, 2, 3]),
    ("0", "FASTEST_FIRST", [3]),
    ("0", "PCI_BUS_ID", [0]),
    ("2,0", "FASTEST_FIRST", [0, 3]),
    ("2,0", "PCI_BUS_ID", [2, 0]),
    ("3,2,1,0", "FASTEST_FIRST", [2, 0, 1, 3]),
    ("1,-1,2", "FASTEST_FIRST", [1]),
    ("1,9,0", "PCI_BUS_ID", [1]),
    ("1,none,0", "PCI_BUS_ID", [1]),
    (f"{C},{A}", "FASTEST_FIRST", [2, 0]),
    (f"{C},{A}", "PCI_BUS_ID", [2, 0]),
    (f"{C},GPU-ffff,{A}", "PCI_BUS_ID", [2]),
    ("GPU-bbbb", "FASTEST_FIRST", [2]),
    ("GPU-aaaa1,GPU-c", "FASTEST_FIRST", [1, 3]),
    ("GPU-bbbb,GPU-aaaa,GPU-cccc", "FASTEST_FIRST", [2]),  # the second names two cards
    ("GPU-bbbb,0", "FASTEST_FIRST", [2, 3]),
    ("", "FASTEST_FIRST", []),
    ("-1", "FASTEST_FIRST", []),
    ("GPU-aaaa", "FASTEST_FIRST", []),
    ("0,0", "FASTEST_FIRST", []),
    (f"{C},GPU-bbbb", "FASTEST_FIRST", []),  # one card named twice
]


def environment(visible: str | None, order: str) -> dict[str, str]:
    return {"CUDA_DEVICE_ORDER": order} | (
        {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    )


def assert_limits(client: Client, machine: Machine, cards: list[int]) -> None:
    """Assert that the program has exactly these cards, and takes each slice from its card."""
    if not cards:
        assert client.call("open_device") == {"result": NO_DEVICE}
    for ordinal, card in enumerate(cards):
        assert client.call("open_device", ordinal=ordinal) == {"result": 0}
        assert client.info() == (slice_of(card), slice_of(card))
        assert client.call("total_mem", ordinal=ordinal)["total"] == slice_of(card)
        assert client.alloc(slice_of(card))[0] == 0
        assert client.alloc(1)[0] == 2
        assert machine.used_bytes(card) == slice_of(card)
    assert client.call("total_mem", ordinal=len(cards))["result"] != 0
    # NVML's order is that of the bus, whatever CUDA is configured to.
    for card in range(4):
        held = slice_of(card) if card in cards else 0
        shown = client.nvml("nvmlDeviceGetMemoryInfo", card)
        assert (shown["total"], shown["used"]) == (slice_of(card), held)


@pytest.mark.parametrize("source", ["limits file", "variables"])
@pytest.mark.parametrize(("visible", "order", "cards"), TABLE)
def test_memory_limits_follow_the_card(
    machine: Machine,
    container: Container,
    source: str,
    visible: str | None,
    order: str,
    cards: list[int],
) -> None:
    if source == "limits file":
        limit_all(container)
    more = VARIABLES if source == "variables" else {}
    client = container.start(**environment(visible, order), **more)
    assert_limits(client, machine, cards)


@pytest.mark.parametrize(("visible", "card"), [("1", 1), (C, 2), ("GPU-c", 3), (None, 3)], ids=str)
def test_core_limits_follow_the_card(container: Container, visible: str | None, card: int) -> None:
    limit_all(container)
    client = container.start(**environment(visible, "FASTEST_FIRST"))
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch", kernels=20) == {"result": 0}
    content = container.region.read_bytes()
    paid = [struct.unpack_from("<q", content, PAID_AT + 48 * at)[0] > 0 for at in range(4)]
    assert paid == [listed == card for listed, _ in LISTED]


def test_variables_count_the_cards_that_the_container_has(
    machine: Machine, container: Container
) -> None:
    # HAMi's numbers are NVML's inside the container: here 0 is the second card, 1 the fourth.
    env = {"FAKEGPU_VISIBLE_DEVICES": f"{B},{D}", "CUDA_VISIBLE_DEVICES": "0"}
    client = container.start(**env, **VARIABLES)
    assert client.call("open_device") == {"result": 0}
    assert client.info()[1] == 2 * MIB  # CUDA's first is the fourth card, the faster one
    assert client.alloc(2 * MIB)[0] == 0
    assert machine.used_bytes(3) == 2 * MIB


@pytest.fixture
def cut(machine: Machine) -> Machine:
    """The last card is cut into two instances."""
    machine.settings["devices"][3]["memory_mib"] = 40960
    machine.settings["devices"][3]["mig"] = [
        {
            "uuid": uuid,
            "gpu_slices": 3,
            "compute_slices": 3,
            "memory_mib": 20096,
            "gpu_instance": number + 1,
            "compute_instance": 0,
            "start": 4 * number,
        }
        for number, uuid in enumerate(INSTANCES)
    ]
    machine.write()
    return machine


@pytest.mark.parametrize(
    ("visible", "instance"),
    [
        (INSTANCES[0], 0),
        (INSTANCES[1], 1),
        (f"{INSTANCES[1]},{INSTANCES[0]}", 1),  # a process has one instance: the first
        (f"MIG-{D}/1/0", 0),
        (f"MIG-{D}/2/0", 1),
        (f"MIG-{D}/5/0", None),
        ("MIG-eeee5555-0000-0000-0000-000000000000", None),
    ],
    ids=str,
)
def test_limits_follow_the_instance(
    cut: Machine, container: Container, visible: str, instance: int | None
) -> None:
    lines = [
        f"device {uuid} memory_bytes {(number + 7) * MIB} core_percent 0\n"
        for number, uuid in enumerate(INSTANCES)
    ]
    container.limits("hami-limits 1\n" + "".join(reversed(lines)))
    client = container.start(CUDA_VISIBLE_DEVICES=visible)
    if instance is None:
        assert client.call("open_device") == {"result": NO_DEVICE}
        return
    assert client.call("open_device") == {"result": 0}
    granted = (instance + 7) * MIB
    assert client.info() == (granted, granted)
    assert client.alloc(granted + 1)[0] == 2
    assert client.alloc(granted)[0] == 0
    assert cut.used_bytes(3) == granted


def test_an_instance_of_a_card_that_is_listed_whole_has_the_cards_limit(
    cut: Machine, container: Container
) -> None:
    container.limits(f"hami-limits 1\ndevice {D} memory_bytes {9 * MIB} core_percent 0\n")
    client = container.start(CUDA_VISIBLE_DEVICES=INSTANCES[1])
    assert client.call("open_device") == {"result": 0}
    assert client.info() == (9 * MIB, 9 * MIB)


def test_an_instance_that_was_not_granted_gives_nothing(cut: Machine, container: Container) -> None:
    container.limits(f"hami-limits 1\ndevice {INSTANCES[0]} memory_bytes {MIB} core_percent 0\n")
    client = container.start(CUDA_VISIBLE_DEVICES=INSTANCES[1])
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(1)[0] == 2
    assert cut.used_bytes(3) == 0


def test_sixty_four_cards_reversed(tmp_path: Path) -> None:
    uuids = [f"GPU-{number:08d}-0000-0000-0000-00000000beef" for number in range(64)]
    machine = Machine.with_cards(tmp_path, uuids)
    container = Container(machine, tmp_path)
    lines = [f"device {u} memory_bytes {slice_of(i)} core_percent 0\n" for i, u in enumerate(uuids)]
    container.limits("hami-limits 1\n" + "".join(lines))
    client = container.start(CUDA_VISIBLE_DEVICES=",".join(str(i) for i in range(63, -1, -1)))
    try:
        for ordinal in (0, 1, 20, 63):
            assert client.call("open_device", ordinal=ordinal) == {"result": 0}
            assert client.info()[1] == slice_of(63 - ordinal)
            assert client.alloc(slice_of(63 - ordinal))[0] == 0
            assert machine.used_bytes(63 - ordinal) == slice_of(63 - ordinal)
    finally:
        client.end()
