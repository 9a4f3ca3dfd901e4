"""The fit rules of protocol 1.0.4, one by one and in their order."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hamicommon.domain.allocations import Placement
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Selection
from hamicommon.placement.engine import place
from hamicommon.placement.unschedulable import Refusal

from tests.unit.hamicommon.placement.clusters import card, cards, container, pod, view_of

N = NodeName("n")


def answer(request: PodRequest, *usages: DeviceUsage) -> list[list[str]] | str:
    """The cards of every container, or the node's reason."""
    found = place(request, view_of({"n": usages}))
    if isinstance(found, Refusal):
        return found.reasons[N]
    assert isinstance(found, Placement)
    return [[share.uuid for share in each.shares] for each in found.containers]


BREAKS: dict[str, dict[str, Any]] = {
    "1 health": {"card": {"healthy": False}, "reason": "CardNotHealth"},
    "2 cordon": {"card": {"cordoned": True}, "reason": "CardCordoned"},
    "3 type": {"selection": {"avoid_types": ("A100",)}, "reason": "CardTypeMismatch"},
    "5 uuid": {"selection": {"avoid_uuids": ("g",)}, "reason": "CardUuidMismatch"},
    "6 slots": {"used": (10, 0, 0), "reason": "CardTimeSlicingExhausted"},
    "7 mutex": {"used": (1, 0, 0), "gpu": "mutex", "reason": "ExclusiveDeviceAllocateConflict"},
    "11 memory": {"used": (1, 7001, 0), "reason": "CardInsufficientMemory"},
    "12 cores": {"used": (1, 0, 81), "reason": "CardInsufficientCore"},
    "13 exclusive": {
        "used": (1, 0, 0),
        "core": 100,
        "reason": "ExclusiveDeviceAllocateConflict",
    },
    "14 exhausted": {"used": (1, 0, 100), "core": 0, "reason": "CardComputeUnitsExhausted"},
}
"""By number and name, how a card or a request of 1000 MiB and 20 percent breaks the rule."""


def break_rules(*rules: str) -> tuple[PodRequest, DeviceUsage]:
    """A request, and a card `g` of 8000 MiB that breaks these rules."""
    used, core, gpu = (0, 0, 0), 20, "spread"
    looks: dict[str, Any] = {}
    selected: dict[str, Any] = {}
    for rule in rules:
        how = BREAKS[rule]
        used = tuple(map(max, used, how.get("used", (0, 0, 0))))
        core, gpu = how.get("core", core), how.get("gpu", gpu)
        looks |= how.get("card", {})
        selected |= how.get("selection", {})
    asked = pod(
        cards(memory_mib=1000, core_percent=core), gpu=(gpu,), selection=Selection(**selected)
    )
    return asked, card("g", used=used, **looks)


@pytest.mark.parametrize("rule", BREAKS)
def test_a_card_that_breaks_one_rule_is_refused_with_its_reason(rule: str) -> None:
    request, usage = break_rules(rule)

    assert answer(request, usage) == f"1/1 {BREAKS[rule]['reason']}"
    # Another card of the node is not concerned.
    other = card("h")
    assert answer(request, usage, other) in ([["h"]], "2/2 CardTypeMismatch")


def can_break_both(pair: tuple[str, str]) -> bool:
    """Return whether a request can break both: rule 14 needs 0 cores, 12 and 13 need some."""
    return not ("14 exhausted" in pair and {"12 cores", "13 exclusive"} & {*pair})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, id=" before ".join(pair))
        for pair in combinations(BREAKS, 2)
        if can_break_both(pair)
    ],
)
def test_of_two_broken_rules_the_earlier_one_is_the_reason(first: str, second: str) -> None:
    assert answer(*break_rules(first, second)) == f"1/1 {BREAKS[first]['reason']}"


@pytest.mark.parametrize(
    ("usage", "request_"),
    [
        pytest.param(
            card("g", used=(9, 7000, 80)), cards(memory_mib=1000, core_percent=20), id="just fits"
        ),
        pytest.param(
            card("g", core_percent=200, used=(1, 0, 100)),
            cards(memory_mib=1, core_percent=100),
            id="13 not on scaled cores",
        ),
        pytest.param(
            card("g", core_percent=0, used=(1, 0, 0)),
            cards(memory_mib=1),
            id="14 not without cores",
        ),
        pytest.param(
            card("g", used=(1, 0, 99)), cards(memory_mib=1), id="14 not with one percent left"
        ),
        pytest.param(
            card("g", used=(1, 8000, 0)),
            DeviceRequest(vendor="NVIDIA", count=1),
            id="9 neither memory nor percentage asks for none",
        ),
        pytest.param(
            card("g", memory_mib=999),
            DeviceRequest(vendor="NVIDIA", count=1, memory_percent=100),
            id="9 all of a small card",
        ),
    ],
)
def test_at_the_edge_of_a_rule_the_card_is_given(
    usage: DeviceUsage, request_: DeviceRequest
) -> None:
    assert answer(pod(request_), usage) == [["g"]]


def test_cores_stay_clamped_on_the_cards_that_follow() -> None:
    """Rule 8: 150 percent are 100 on every card, so a second idle card is whole again."""
    asked = pod(cards(count=2, memory_mib=1, core_percent=150))

    assert answer(asked, card("a"), card("b", index=1)) == [["b", "a"]]
    used = card("b", index=1, used=(1, 0, 1))
    assert answer(asked, card("a"), used) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore"
    )


def test_amounts_win_over_a_percentage() -> None:
    """Rule 9: memory in MiB, if given, is taken."""
    both = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1000, memory_percent=100)

    assert answer(pod(both), card("g", used=(1, 7000, 0))) == [["g"]]


def test_a_percentage_is_of_each_cards_own_memory() -> None:
    half = DeviceRequest(vendor="NVIDIA", count=2, memory_percent=50)
    found = place(pod(half), view_of({"n": [card("a"), card("b", index=1, memory_mib=4001)]}))

    assert isinstance(found, Placement)
    assert {s.uuid: s.memory_mib for s in found.containers[0].shares} == {"a": 4000, "b": 2000}


def test_reasons_are_sorted_as_text_so_that_ten_comes_before_two() -> None:
    usages = [card(f"m{i}", used=(1, 8000, 0)) for i in range(10)]
    usages += [card(f"h{i}", healthy=False) for i in range(2)]

    assert answer(pod(cards(memory_mib=1)), *usages) == (
        "10/12 CardInsufficientMemory, 2/12 CardNotHealth"
    )


def test_what_was_picked_before_the_cards_ran_out_is_a_reason_of_its_own() -> None:
    usages = [card("a"), card("b", index=1), card("c", index=2, cordoned=True)]

    assert answer(pod(cards(count=3, memory_mib=1)), *usages) == (
        "1/3 CardCordoned, 2/3 AllocatedCardsInsufficientRequest"
    )


def test_containers_of_a_pod_add_up_on_its_cards() -> None:
    half = cards(memory_mib=3000, core_percent=50)

    assert answer(pod(half, half), card("g")) == [["g"], ["g"]]
    assert answer(pod(half, half, cards(memory_mib=1)), card("g")) == (
        "1/1 CardComputeUnitsExhausted"
    )


@pytest.mark.parametrize(
    ("numas", "count", "expected"),
    [
        pytest.param([0, 0, 1, 1], 2, [["d", "c"]], id="one group is enough"),
        pytest.param([0, 0, 0, 1], 2, [["c", "b"]], id="the first group is dropped"),
        pytest.param(
            [0, 0, 1, 1],
            3,
            "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit",
            id="no group is enough",
        ),
        pytest.param(
            [0, 1, 2, 3],
            2,
            "1/4 AllocatedCardsInsufficientRequest, 3/4 NumaNotFit",
            id="every group is dropped",
        ),
    ],
)
def test_slices_bound_to_one_numa_node_begin_again_on_another(
    numas: list[int], count: int, expected: list[list[str]] | str
) -> None:
    """Rule 4: from the last card on; picks of the previous NUMA node are dropped."""
    usages = [card(name, index=i, numa=numas[i]) for i, name in enumerate("abcd")]
    asked = pod(cards(count=count, memory_mib=1), selection=Selection(numa_bind=True))

    assert answer(asked, *usages) == expected


@pytest.mark.parametrize(
    ("refused", "selection", "reasons"),
    [
        pytest.param(
            card("b", index=1, numa=1, used=(1, 0, 0)),
            Selection(numa_bind=True),
            "1/2 ExclusiveDeviceAllocateConflict, 1/2 NumaNotFit",
            id="by a rule after the grouping",
        ),
        pytest.param(
            card("b", index=1, numa=1, used=(1, 0, 0), type="NVIDIA A10"),
            Selection(numa_bind=True, avoid_types=("A10,", "NVIDIA A10")),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTypeMismatch",
            id="by a rule before it",
        ),
    ],
)
def test_a_refused_card_ends_a_numa_group_unless_it_was_refused_before_the_grouping(
    refused: DeviceUsage, selection: Selection, reasons: str
) -> None:
    """`mutex` walks idle cards first, so a busy card of another NUMA node comes after."""
    idle = card("a", type="NVIDIA H100")
    asked = pod(cards(count=2, memory_mib=1), gpu=("mutex",), selection=selection)

    assert answer(asked, idle, refused) == reasons


WHOLE = cards(memory_mib=1000, core_percent=100)


@pytest.mark.parametrize(
    ("first", "second", "last", "found"),
    [
        pytest.param(
            container(cards(memory_mib=3000), role="sidecar"),
            container(cards(memory_mib=6000), role="init"),
            cards(memory_mib=1500),
            "1/1 CardInsufficientMemory",
            id="memory",
        ),
        pytest.param(
            container(cards(memory_mib=6000), role="init"),
            container(cards(memory_mib=3000), role="sidecar"),
            cards(memory_mib=1500),
            [["g"], ["g"], ["g"]],
            id="the other order",
        ),
        pytest.param(
            container(cards(memory_mib=1000, core_percent=50), role="sidecar"),
            container(cards(memory_mib=1000, core_percent=60), role="init"),
            cards(memory_mib=1000, core_percent=10),
            "1/1 CardInsufficientCore",
            id="cores",
        ),
        pytest.param(
            container(cards(memory_mib=1000), role="sidecar"),
            container(WHOLE, role="init"),
            cards(memory_mib=1000, core_percent=10),
            "1/1 ExclusiveDeviceAllocateConflict",
            id="a card of its own for an init container",
        ),
        pytest.param(
            container(WHOLE, role="init"),
            container(WHOLE, role="init"),
            WHOLE,
            [["g"], ["g"], ["g"]],
            id="init containers without sidecars share with each other",
        ),
    ],
)
def test_an_init_container_is_fitted_beside_the_sidecars_before_it(
    first: ContainerRequest, second: ContainerRequest, last: DeviceRequest, found: object
) -> None:
    assert answer(pod(first, second, last), card("g")) == found


def test_an_init_container_takes_another_card_than_the_sidecar_that_fills_one() -> None:
    asked = pod(
        container(cards(memory_mib=6000), role="sidecar"),
        container(cards(memory_mib=6000), role="init"),
        container(cards(memory_mib=1000)),
    )

    sidecar, init, _ = answer(asked, card("g"), card("h", index=1))

    assert {*sidecar, *init} == {"g", "h"}


def test_slots_are_counted_for_all_that_run_at_the_same_time() -> None:
    asked = pod(
        container(cards(memory_mib=100), role="sidecar"),
        container(cards(memory_mib=100), role="sidecar"),
        container(cards(memory_mib=100), role="init"),
        container(),
    )

    assert answer(asked, card("g", slots=2)) == "1/1 CardTimeSlicingExhausted"
    assert answer(asked, card("g", slots=3)) == [["g"], ["g"], ["g"], []]
