"""Cambricon MLU, by protocol 1.3."""

import pytest
from hamicommon.device_config import CambriconConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.shares import Cambricon

from tests.unit.hamicommon.vendors.standing import container, make_placed_pod, node, share

MLU = Cambricon(CambriconConfig())
COUNT = "cambricon.com/vmlu"
MEM = "cambricon.com/mlu.smlu.vmemory"
CORE = "cambricon.com/mlu.smlu.vcore"


@pytest.mark.parametrize(
    ("limits", "requests", "expected"),
    [
        ({COUNT: "1"}, None, (1, 0, 100, 100)),
        ({COUNT: 2, MEM: 20, CORE: 10}, None, (2, 5120, None, 10)),
        ({COUNT: 1, MEM: 0}, None, (1, 0, 100, 100)),
        (None, {COUNT: 1, MEM: 4}, (1, 1024, None, 100)),
        ({COUNT: 1}, {COUNT: 3, CORE: 5}, (1, 0, 100, 5)),
    ],
    ids=["alone", "units of 256 MiB", "memory 0", "requests", "limits first"],
)
def test_a_request_is_count_memory_and_cores(limits, requests, expected) -> None:
    found = MLU.parse_request(container(limits, requests))

    assert found is not None
    assert (found.count, found.memory_mib, found.memory_percent, found.core_percent) == expected


@pytest.mark.parametrize("limits", [{}, {COUNT: 0}, {MEM: 5, CORE: 10}], ids=str)
def test_without_a_count_no_card_is_asked_for(limits) -> None:
    assert MLU.parse_request(container(limits)) is None


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({COUNT: "-1"}, f"container 'c': {COUNT} is -1: expected a whole number of cards"),
        (
            {COUNT: 1, MEM: "16.0Gi"},
            f"{MEM} is 16.0Gi: expected a whole number of units of 256 MiB",
        ),
        ({COUNT: 1, MEM: 2**31 // 256}, "a whole number of units of 256 MiB up to 8388607"),
        ({COUNT: 1, CORE: "x"}, f"{CORE} is x, which is not a quantity"),
    ],
    ids=["negative", "fraction", "too large", "no quantity"],
)
def test_malformed_amounts_are_refused_and_not_dropped(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        MLU.parse_request(container(limits))


@pytest.mark.parametrize(
    ("cores", "memory", "cards"),
    [
        ("400", "768", [49152] * 4),
        ("350", "700", [51200] * 4),
        ("100", "0", [0]),
        ("0", "768", []),
    ],
    ids=["four", "part of a card counts", "no memory", "none"],
)
def test_a_node_has_a_card_per_hundred_cores(cores, memory, cards) -> None:
    found = MLU.node_devices(node({CORE: cores, MEM: memory}))

    assert [card.memory_mib for card in found] == cards
    assert [card.uuid for card in found] == [f"n-cambricon-mlu-{i}" for i in range(len(cards))]
    for index, card in enumerate(found):
        assert (card.index, card.slots, card.core_percent, card.type) == (index, 100, 100, "MLU")
        assert card.healthy


def test_a_placed_pod_shows_the_plugin_its_first_slice() -> None:
    cards = MLU.node_devices(node({CORE: "400", MEM: "768"}))
    slices = share(cards[3], memory_mib=5120, core_percent=20)

    assert MLU.pod_annotations(make_placed_pod(cards, (), (slices, share(cards[1])))) == {
        "hami.io/cambricon-mlu-devices-to-allocate": (
            ";n-cambricon-mlu-3,MLU,5120,20:n-cambricon-mlu-1,MLU,49152,100:;"
        ),
        "hami.io/cambricon-mlu-devices-allocated": (
            ";n-cambricon-mlu-3,MLU,5120,20:n-cambricon-mlu-1,MLU,49152,100:;"
        ),
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_PROFILE": "3_20_20",
    }
    assert MLU.pod_annotations(make_placed_pod(cards, ())) == {}
