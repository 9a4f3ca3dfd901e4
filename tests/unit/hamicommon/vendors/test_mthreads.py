"""Moore Threads, by protocol 1.6."""

import pytest
from hamicommon.device_config import MthreadsConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.shares import Mthreads

from tests.unit.hamicommon.vendors.standing import (
    NOW_NS,
    container,
    make_placed_pod,
    node,
    pod,
    share,
)

MT = Mthreads(MthreadsConfig())
COUNT, MEM, CORE = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({COUNT: 1, MEM: 32, CORE: 8}, (1, 16384, None, 8)),
        ({COUNT: 2, MEM: 192, CORE: 32}, (2, 49152, None, 16)),
        ({COUNT: 1}, (1, 0, 100, 0)),
        ({COUNT: 0}, None),
        ({MEM: 32}, None),
    ],
    ids=["units of 512 MiB", "divided by the count", "no memory", "count 0", "no count"],
)
def test_a_request_takes_an_equal_part_of_every_card(limits, expected) -> None:
    found = MT.parse_request(container(limits))

    assert expected == (
        found and (found.count, found.memory_mib, found.memory_percent, found.core_percent)
    )


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({COUNT: "x"}, f"{COUNT} is x, which is not a quantity"),
        (
            {COUNT: 1, MEM: 2**31 // 512},
            f"{MEM} is 4194304: expected a whole number of units of 512 MiB",
        ),
        ({COUNT: 1, CORE: "0.5"}, f"{CORE} is 0.5: expected a whole number, 16 for each card"),
    ],
)
def test_malformed_amounts_are_refused_and_not_dropped(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        MT.parse_request(container(limits))


@pytest.mark.parametrize(
    ("limits", "filled_in"),
    [
        ({COUNT: "2"}, {COUNT: "2", CORE: "32", MEM: "192"}),
        ({COUNT: 3, MEM: 1, CORE: 1}, {COUNT: 3, CORE: "48", MEM: "288"}),
        ({COUNT: 1}, {COUNT: 1, CORE: "16", MEM: "96"}),
        ({COUNT: 1, MEM: 32, CORE: 8}, {COUNT: 1, MEM: 32, CORE: 8}),
    ],
    ids=["several are whole", "whatever was asked for", "one is whole", "one with memory stays"],
)
def test_admission_fills_in_whole_cards(limits, filled_in) -> None:
    asking = container(dict(limits))
    whole = pod(asking)

    assert MT.mutate(asking, whole).wants
    assert asking["resources"]["limits"] == filled_in
    several = int(limits[COUNT]) > 1
    number = {"mthreads.com/request-gpu-num": str(limits[COUNT])} if several else {}
    assert whole["metadata"]["annotations"] == number
    once = dict(asking["resources"]["limits"])
    MT.mutate(asking, whole)
    assert asking["resources"]["limits"] == once


def test_admission_reads_the_count_from_requests_too() -> None:
    asking = container(None, {COUNT: "2"})

    assert MT.mutate(asking, pod(asking)).wants
    assert asking["resources"]["limits"] == {CORE: "32", MEM: "192"}
    assert not MT.mutate(container({CORE: 1}), pod({})).wants


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({COUNT: 0}, f"container 'c': {COUNT} must be greater than 0, not 0"),
        ({COUNT: -1}, f"{COUNT} must be greater than 0, not -1"),
        (
            {COUNT: 1, MEM: 3},
            f"{MEM} is 3: expected one of 2, 4, 8, 16, 32, 64, 96, in units of 512 MiB",
        ),
        ({COUNT: 1, MEM: 128}, f"{MEM} is 128: expected one of 2, 4, 8"),
        ({COUNT: 1, MEM: 0}, f"{MEM} is 0: expected one of 2, 4, 8"),
    ],
)
def test_admission_refuses_what_no_card_gives(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        MT.mutate(container(limits), pod({}))


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64, 96])
def test_admission_takes_every_legal_size(size) -> None:
    assert MT.mutate(container({COUNT: 1, MEM: size}), pod({})).wants


@pytest.mark.parametrize(
    ("cores", "memory", "cards"),
    [("32", "192", [49152] * 2), ("40", "240", [49152] * 3), ("0", "192", [])],
    ids=["two", "part of a card counts", "none"],
)
def test_a_node_has_a_card_per_sixteen_cores(cores, memory, cards) -> None:
    found = MT.node_devices(node({CORE: cores, MEM: memory}))

    assert [card.memory_mib for card in found] == cards
    assert [card.uuid for card in found] == [f"n-mthreads-{i}" for i in range(len(cards))]
    assert {(c.slots, c.core_percent, c.type) for c in found} <= {(100, 16, "Mthreads")}


def test_a_placed_pod_carries_indexes_time_and_node() -> None:
    cards = MT.node_devices(node({CORE: "48", MEM: "288"}))
    first = (share(cards[0]),)
    last = (share(cards[2]), share(cards[1]))

    assert MT.pod_annotations(make_placed_pod(cards, first, last, ())) == {
        "hami.io/mthreads-vgpu-devices-allocated": (
            "n-mthreads-0,Mthreads,49152,16:;"
            "n-mthreads-2,Mthreads,49152,16:n-mthreads-1,Mthreads,49152,16:;;"
        ),
        "mthreads.com/gpu-index": "2,1",
        "mthreads.com/predicate-time": NOW_NS,
        "mthreads.com/predicate-node": "n",
    }


def test_a_pod_stays_on_one_card() -> None:
    assert MT.rules.same_card
