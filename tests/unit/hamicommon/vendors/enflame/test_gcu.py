"""Enflame whole cards, by protocol 1.11."""

import pytest
from hamicommon.device_config import EnflameConfig
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import REASONS
from hamicommon.vendors.enflame import EnflameGcu

from tests.unit.hamicommon.vendors.standing import container, node, placed, pod, share

GCU = EnflameGcu(EnflameConfig())
COUNT = "enflame.com/gcu"


def test_a_request_is_for_whole_cards_of_100() -> None:
    found = GCU.parse_request(container({COUNT: 2}))

    assert found is not None
    assert (found.count, found.memory_mib, found.memory_percent, found.core_percent) == (
        (2, 100, 100, 100)
    )
    assert GCU.parse_request(container({})) is None
    with pytest.raises(InvalidRequest, match=f"container 'c': {COUNT} is -2: a whole number"):
        GCU.parse_request(container({COUNT: -2}))


def test_a_node_has_as_many_cards_as_the_kubelet_lists() -> None:
    cards = GCU.node_devices(node({COUNT: "2"}))

    assert [card.uuid for card in cards] == ["n-GCU-0", "n-GCU-1"]
    assert {(c.slots, c.memory_mib, c.core_percent, c.type) for c in cards} == {
        (1, 100, 100, "GCU")
    }
    assert GCU.plugin_alive(node({COUNT: "2"}))
    assert not GCU.plugin_alive(node())
    assert not GCU.plugin_alive(node({COUNT: "x"}))


def test_a_used_card_is_refused_as_exclusive_whatever_is_left_of_it() -> None:
    assert [REASONS[rule] for rule in GCU.rules.order] == [
        "CardNotHealth",
        "CardCordoned",
        "CardTypeMismatch",
        "ExclusiveDeviceAllocateConflict",
    ]


def test_a_placed_pod_carries_its_slices_twice() -> None:
    cards = GCU.node_devices(node({COUNT: "2"}))

    assert GCU.pod_annotations(placed(cards, (share(cards[1]),))) == {
        f"hami.io/enflame-gcu-devices-{key}": "n-GCU-1,GCU,100,100:;"
        for key in ("to-allocate", "allocated")
    }


def test_admission_takes_containers_whose_limits_name_the_count_and_nothing_selects() -> None:
    assert GCU.mutate(container({COUNT: 1}), pod({})).wants
    assert not GCU.mutate(container(None, {COUNT: 1}), pod({})).wants
    assert GCU.select({"enflame.com/use-gpuuuid": "x"}) == Selection()
    assert GCU.keys.lock == ""
