"""Which Ascend chips are chosen (protocol 1.16)."""

import pytest
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import Selection
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need
from hamicommon.vendors.ascend import score_networks

from tests.unit.hamicommon.vendors.ascend.chips import (
    B3,
    CORES,
    MEM,
    NPU,
    P310,
    SOFT,
    C,
    chips,
    names,
)
from tests.unit.hamicommon.vendors.asking import (
    container,
    judge,
    picked,
    put,
    refused,
    unhealthy,
    use,
)


def test_soft_slices_are_refused_by_nodes_that_cannot_cut() -> None:
    hard, soft = chips(B3, [0, 0]), chips(B3, [0, 0], soft=True)
    limits = {NPU: 1, MEM: 1000, CORES: 30}

    assert refused(put(B3, use(hard), limits, annotations=SOFT), 2) == "1/2 ModeNotFit"
    answer = put(B3, use(soft), limits, annotations=SOFT)
    assert picked(answer) == ["npu-1"]
    assert [(s.memory_mib, s.core_percent, s.type) for s in answer.shares] == [(1000, 30, "")]


def test_soft_slices_count_cores_in_percent_of_a_chip() -> None:
    (chip,) = chips(B3, [0], soft=True)
    request = B3.parse_request(container({NPU: 1, MEM: 1000, CORES: 30}))
    soft = B3.select(SOFT)
    assert request is not None

    def met(core: int, wanted: int = 30) -> Rule:
        (card,) = use([chip], npu_0=(1, 0, core))
        asked = B3.parse_request(container({NPU: 1, MEM: 1000, CORES: wanted}))
        assert asked is not None
        return judge(B3.rules, card, asked, soft)

    assert B3.rules.need(request, soft, chip) == Need(1000, 30, 100)
    assert B3.rules.need(request, Selection(), chip) == Need(1000, 30, None)
    assert met(70) == Rule.FITS
    assert met(71) == Rule.CORES
    assert met(0, wanted=100) == Rule.EXCLUSIVE
    assert met(100, wanted=0) == Rule.CORES_EXHAUSTED
    assert met(20, wanted=0) == Rule.FITS


@pytest.mark.parametrize(
    ("networks", "busy", "count", "taken"),
    [
        ([0, 0, 1, 1], (), 2, [3, 2]),
        ([0, 0, 1, 1], (3,), 2, [1, 0]),
        ([0, 0, 1, 1], (3,), 3, [2, 1, 0]),
        ([0, 1, 1, 1, 0, 0], (), 2, [5, 4]),
        ([0, 1, 1, 1, 0, 0], (5,), 4, [3, 2, 1, 4]),
        ([0, 0, 1, None], (), 2, [3, 2]),
        ([1, 1.0, 2, "x"], (), 2, [1, 0]),
        ([0, 0, 0, 1], (), 1, [3]),
    ],
    ids=[
        "ties",
        "fuller",
        "all",
        "first of equals",
        "most, then the rest",
        "unknown",
        "numbers",
        "one",
    ],
)
def test_several_chips_come_from_the_networks_with_most_of_them(
    networks, busy, count, taken
) -> None:
    used = {f"npu_{index}": (7, 0, 0) for index in busy}

    assert picked(put(B3, use(chips(B3, networks), **used), {NPU: count})) == [
        f"npu-{index}" for index in taken
    ]


def test_only_910_chips_have_networks() -> None:
    npu, *_ = names("Ascend310P")
    cards = use(chips(P310, [0, 0, 1]))

    assert picked(put(P310, cards, {npu: 2})) == ["npu-2", "npu-1"]
    assert P310.rules.scorer is None
    assert B3.rules.scorer is score_networks


def test_modules_of_two_are_taken_whole() -> None:
    npu, *_ = names("Ascend910C")
    cards = chips(C, [0, 0, 0, 0, 1, 1], slots=1)

    assert picked(put(C, use(cards, npu_4=(1, 0, 0)), {npu: 2})) == ["npu-3", "npu-2"]
    assert picked(put(C, use(cards), {npu: 4})) == ["npu-5", "npu-4", "npu-3", "npu-2"]
    assert picked(put(C, use(cards, npu_5=(1, 0, 0)), {npu: 1})) == ["npu-4"]


def test_too_few_whole_modules_are_counted_over_the_chips_asked_for() -> None:
    npu, *_ = names("Ascend910C")
    cards = chips(C, [None] * 6, slots=1)
    held = use([unhealthy(cards[0]), *cards[1:]], npu_3=(1, 0, 0))

    assert refused(put(C, held, {npu: 4}), 6) == (
        "1/4 CardNotHealth, 1/4 CardTimeSlicingExhausted, 2/4 AllocatedCardsInsufficientRequest"
    )
    assert refused(put(C, use(cards), {npu: 3}), 6) == "4/3 AllocatedCardsInsufficientRequest"
    halves = use(cards, npu_0=(1, 0, 0), npu_2=(1, 0, 0), npu_4=(1, 0, 0))
    assert refused(put(C, halves, {npu: 2}), 6) == (
        "0/2 AllocatedCardsInsufficientRequest, 3/2 CardTimeSlicingExhausted"
    )


def test_too_few_chips_are_refused_with_the_reason_of_each() -> None:
    cards = chips(B3, [0, 0, 1])
    held = use([unhealthy(cards[0]), *cards[1:]], npu_1=(1, 65536, 0))

    assert refused(put(B3, held, {NPU: 2}), 3) == (
        "1/3 AllocatedCardsInsufficientRequest, 1/3 CardInsufficientMemory, 1/3 CardNotHealth"
    )
    assert refused(put(B3, held[:2], {NPU: 2}), 2) == (
        "1/2 CardInsufficientMemory, 1/2 CardNotHealth"
    )


@pytest.mark.parametrize(
    ("vendor", "count", "annotations", "networks", "applies", "decides"),
    [
        (B3, 1, {}, [0, 1], False, False),
        (B3, 2, {}, [0, 1], True, False),
        (B3, 2, {}, [0, None], False, False),
        (B3, 1, SOFT, [0, 1], True, True),
        (P310, 2, {}, [0, 1], False, False),
        (C, 1, {}, [0, 1], False, False),
        (C, 2, {}, [None, None], True, True),
    ],
)
def test_the_chooser_is_asked_only_where_it_matters(
    vendor, count, annotations, networks, applies, decides
) -> None:
    request = vendor.parse_request(container({vendor.resources.count: count}))
    selection = vendor.select(annotations)

    assert vendor.rules.applies(request, selection, chips(vendor, networks)) is applies
    assert vendor.rules.decides(request, selection) is decides


def shares_on(*indexes: int) -> list[DeviceShare]:
    return [
        DeviceShare(uuid=GpuUuid(f"npu-{i}"), vendor=B3.name, memory_mib=0, core_percent=0)
        for i in indexes
    ]


@pytest.mark.parametrize(
    ("networks", "containers", "score"),
    [
        ([0, 0, 1], [shares_on(0, 1)], 10),
        ([0, 0, 1], [shares_on(0, 2)], 5),
        ([0, 0, 1], [shares_on(0, 1, 2), [], shares_on(2)], 10 * (2 / 3 + 1)),
        ([0, None, 1], [shares_on(0)], 10),
        ([0, None, 1], [shares_on(0), shares_on(1)], 0),
        ([0], [[]], 0),
    ],
)
def test_the_score_is_ten_times_the_share_of_chips_in_one_network(
    networks, containers, score
) -> None:
    before = use(chips(B3, networks))

    assert score_networks(before, containers, Selection(), "spread") == pytest.approx(score)
