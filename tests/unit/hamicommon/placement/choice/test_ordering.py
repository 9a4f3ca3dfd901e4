"""Card scores and orders of protocol 4.6."""

import numpy as np
import pytest
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, Policy, ScoreWeights
from hamicommon.placement.choice.ordering import card_scores, order

from tests.unit.hamicommon.placement.clusters import card, view_of

PLAIN = ScoreWeights()


def score_cards(usages, request, weights=PLAIN):
    view = view_of({"n": usages})
    rows, _ = view.rows_of([NodeName("n")])
    table = view.table(rows)
    counted = np.array([m is not None and m.type == request.vendor for m in view.models])
    return table, card_scores(table, weights, request, counted)


def test_present_usage_alone_counts_on_a_card_with_a_product_name() -> None:
    usage = card("g", core_percent=4, memory_mib=8192, used=(2, 2048, 1))
    request = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1024, core_percent=1)

    assert score_cards([usage], request)[1].tolist() == [[pytest.approx(7.0)]]


def test_the_request_counts_on_a_card_whose_type_is_the_vendors_name() -> None:
    usage = card("g", core_percent=4, memory_mib=8192, used=(2, 2048, 1), type="NVIDIA")
    request = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1024, core_percent=1)

    assert score_cards([usage], request)[1].tolist() == [[pytest.approx(11.75)]]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (ScoreWeights(), (16, 15)),
        (ScoreWeights(memory=3), (26, 27)),
        (ScoreWeights(core=3), (34, 17)),
    ],
)
def test_weights_change_what_counts(weights, expected) -> None:
    usages = [
        card("a", memory_mib=100, used=(1, 10, 90), type="NVIDIA"),
        card("b", memory_mib=100, used=(7, 20, 10), type="NVIDIA"),
    ]
    request = DeviceRequest(vendor="NVIDIA", count=1, memory_percent=40)

    assert score_cards(usages, request, weights)[1].tolist() == [pytest.approx(expected)]


def test_a_card_without_capacity_scores_0() -> None:
    usage = card("g", slots=0, used=(1, 10, 10))

    assert score_cards([usage], DeviceRequest(vendor="NVIDIA", count=1))[1].tolist() == [[0]]


USAGES = [
    card("idle-0", index=0, numa=0),
    card("busy-0", index=1, numa=0, used=(3, 3000, 0)),
    card("idle-1", index=2, numa=1),
    card("busy-1", index=3, numa=1, used=(2, 4000, 0)),
]


@pytest.mark.parametrize(
    ("gpu", "numa_bind", "best_first"),
    [
        (("spread",), False, "idle-1 idle-0 busy-0 busy-1"),
        (("binpack",), False, "busy-1 busy-0 idle-1 idle-0"),
        (("mutex",), False, "idle-1 idle-0 busy-1 busy-0"),
        (("binpack",), True, "busy-0 idle-0 busy-1 idle-1"),
        (("spread",), True, "idle-1 busy-1 idle-0 busy-0"),
        (("numa",), False, "busy-1 idle-1 busy-0 idle-0"),
        (("binpack", "numa"), True, "busy-1 idle-1 busy-0 idle-0"),
        (("spread", "numa"), False, "idle-1 idle-0 busy-0 busy-1"),
        (("mutex", "odd"), False, "idle-1 idle-0 busy-0 busy-1"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_the_last_card_is_the_best_by_policy(gpu, numa_bind, best_first) -> None:
    table, scores = score_cards(USAGES, DeviceRequest(vendor="NVIDIA", count=1))
    ascending = order(table, scores, Policy(gpu=gpu), numa_bind, None)[0]

    assert [USAGES[i].device.uuid for i in ascending[::-1]] == best_first.split()


def test_equal_cards_keep_the_order_that_the_container_before_left() -> None:
    usages = [card(f"g{i}") for i in range(3)]
    table, scores = score_cards(usages, DeviceRequest(vendor="NVIDIA", count=1))
    prior = np.array([[2, 0, 1]])

    assert order(table, scores, Policy(), False, prior).tolist() == [[2, 0, 1]]
