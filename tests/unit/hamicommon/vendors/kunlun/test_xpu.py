"""Kunlun whole cards, by protocol 1.9."""

import pytest
from hamicommon.device_config import KunlunConfig
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Chosen, NotChosen
from hamicommon.vendors.kunlun import KunlunXpu, choose_whole_cards

from tests.unit.hamicommon.vendors.standing import (
    ask,
    container,
    make_placed_pod,
    node,
    pod,
    share,
    uuids,
)

KUNLUN = KunlunXpu(KunlunConfig())
COUNT = "kunlunxin.com/xpu"
CARDS = KUNLUN.node_devices(node({COUNT: "8"}))


def request(count: int) -> DeviceRequest:
    found = KUNLUN.parse_request(container({COUNT: count}))
    assert found is not None
    return found


def test_a_request_is_for_whole_cards() -> None:
    found = request(2)

    assert (found.count, found.memory_percent, found.core_percent) == (2, 100, 0)
    assert KUNLUN.parse_request(container({})) is None
    with pytest.raises(
        InvalidRequest, match=f"container 'c': {COUNT} is 1500m: expected a whole number"
    ):
        KUNLUN.parse_request(container({COUNT: "1500m"}))


@pytest.mark.parametrize(
    ("count", "numa"),
    [("8", [0, 0, 0, 0, 1, 1, 1, 1]), ("5", [0, 0, 1, 1, 1]), ("1", [1])],
)
def test_the_first_half_of_a_nodes_cards_is_on_numa_node_0(count, numa) -> None:
    cards = KUNLUN.node_devices(node({COUNT: count}))

    assert [card.numa for card in cards] == numa
    assert [card.uuid for card in cards] == [f"n-kunlun-{i}" for i in range(len(numa))]
    assert {(c.slots, c.memory_mib, c.core_percent, c.type) for c in cards} == {
        (100, 98304, 100, "kunlun")
    }


@pytest.mark.parametrize(
    ("annotations", "use", "avoid"),
    [
        ({"hami.io/use-xpu-uuid": "a,b"}, ("a", "b"), ()),
        ({"baidu.com/use-gpuuuid": "b"}, ("b",), ()),
        ({"hami.io/use-xpu-uuid": "a,b", "baidu.com/use-gpuuuid": "b,c"}, ("b",), ()),
        ({"hami.io/use-xpu-uuid": "a", "baidu.com/use-gpuuuid": "c"}, ("",), ()),
        ({"hami.io/use-xpu-uuid": " ", "baidu.com/use-gpuuuid": "c"}, ("c",), ()),
        (
            {"hami.io/no-use-xpu-uuid": "a", "baidu.com/nouse-gpuuuid": "b"},
            (),
            ("a", "b"),
        ),
    ],
    ids=["one pair", "the other", "both allow b", "nothing in common", "blank", "both avoid"],
)
def test_a_card_must_pass_both_pairs_of_annotations(annotations, use, avoid) -> None:
    found = KUNLUN.select(annotations)

    assert (found.use_uuids, found.avoid_uuids) == (use, avoid)


def test_cards_are_taken_by_the_graph_over_the_list_from_its_other_end() -> None:
    walk = [DeviceUsage(device=card) for card in reversed(CARDS)]
    rules = [Rule.FITS] * 7 + [Rule.IN_USE]

    answer = choose_whole_cards(ask(request(2), walk, rules=rules))

    assert isinstance(answer, Chosen)
    assert uuids(answer.shares) == ["n-kunlun-1", "n-kunlun-2"]
    assert {(s.memory_mib, s.core_percent) for s in answer.shares} == {(98304, 100)}


@pytest.mark.parametrize(
    ("rules", "reasons"),
    [
        ([Rule.IN_USE] * 8, {"NumaNotFit": 1}),
        ([Rule.UUID] * 3 + [Rule.IN_USE] * 5, {"CardUuidMismatch": 3}),
    ],
    ids=["in use", "uuid rules first"],
)
def test_a_refusal_names_uuids_if_any_else_the_topology(rules, reasons) -> None:
    walk = [DeviceUsage(device=card) for card in CARDS]

    assert choose_whole_cards(ask(request(1), walk, rules=rules)) == NotChosen(reasons=reasons)


@pytest.mark.parametrize(
    ("used", "chosen", "expected"),
    [
        ({0}, {1, 2, 3, 4}, 2000.0),
        ({0}, {1, 2}, 3000.0),
        ({0, 4}, {1}, 3000.0),
        (set(), {0}, 0.0),
        (set(), {0, 1}, 1000.0),
        ({0, 1}, {2, 3}, 2000.0),
        (set(), {0, 1, 2, 3}, 2000.0),
        ({0, 4}, set(range(8)), 1000.0),
    ],
    ids=["0 more", "1 less", "1 less, two wings", "2 more", "1 more", "same", "wing", "4 less"],
)
def test_the_nodes_score_falls_with_the_bubbles_that_the_placement_adds(
    used, chosen, expected
) -> None:
    before = [DeviceUsage(device=c, used_slots=int(c.index in used)) for c in CARDS]
    containers = [[share(CARDS[index])] for index in sorted(chosen)]

    assert KUNLUN.rules.scorer is not None
    assert KUNLUN.rules.scorer(before, containers, Selection(), "binpack") == expected


def test_a_placed_pod_carries_the_indexes_of_its_last_container_with_cards() -> None:
    assert KUNLUN.pod_annotations(
        make_placed_pod(CARDS, (share(CARDS[0]),), (share(CARDS[1]), share(CARDS[2])), ())
    ) == {
        "hami.io/kunlun-allocated": (
            "n-kunlun-0,kunlun,98304,100:;"
            "n-kunlun-1,kunlun,98304,100:n-kunlun-2,kunlun,98304,100:;;"
        ),
        "BAIDU_COM_DEVICE_IDX": "1,2",
    }


def test_admission_takes_containers_whose_limits_name_the_count_and_no_node_is_locked() -> None:
    assert KUNLUN.mutate(container({COUNT: 1}), pod({})).wants
    assert not KUNLUN.mutate(container(None, {COUNT: 1}), pod({})).wants
    assert KUNLUN.keys.lock == ""
    assert KUNLUN.plugin_alive(node())
