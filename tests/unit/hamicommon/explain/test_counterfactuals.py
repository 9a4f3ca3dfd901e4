"""Counterfactuals equal the engine's decision on the changed request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.explain.counterfactuals import (
    Circumstances,
    Counterfactual,
    PodHolding,
    SearchTimeout,
    Trials,
    counterfactuals,
    largest,
)
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, container, pod, view_of

NAMES = {
    "NVIDIA": {
        "memory": "gpumem",
        "percent": "gpumem-percentage",
        "core": "gpucores",
        "count": "gpu",
    }
}


def changes(
    request: PodRequest,
    view: ClusterView,
    holdings: Sequence[PodHolding] = (),
    priorities: Mapping[str, int] | None = None,
) -> list[Counterfactual]:
    about = Circumstances(holdings=holdings, names=NAMES, priorities=priorities or {})
    return list(counterfactuals(request, view, sorted(view.nodes), about, ClusterView))


def texts(request: PodRequest, *usages: DeviceUsage) -> list[str]:
    return [change.text for change in changes(request, view_of({"n": usages}))]


def holding(pod_name: str, uuid: str, memory_mib: int, core_percent: int = 0) -> PodHolding:
    return PodHolding(
        pod=f"ns/{pod_name}",
        node=NodeName("n"),
        uuid=GpuUuid(uuid),
        slots=1,
        memory_mib=memory_mib,
        core_percent=core_percent,
    )


def test_the_largest_memory_that_fits_is_on_the_card_with_the_most_free() -> None:
    free = [card("a", used=(1, 5000, 0)), card("b", used=(1, 7000, 0))]

    assert texts(pod(cards(memory_mib=4000)), *free) == ["fits if gpumem <= 3000 MiB"]


def test_memory_for_several_cards_is_what_the_weaker_of_them_has() -> None:
    free = [card("a", used=(1, 5000, 0)), card("b", used=(1, 7000, 0))]

    assert texts(pod(cards(memory_mib=4000, count=2)), *free) == ["fits if gpumem <= 1000 MiB"]


def test_a_share_of_the_memory_is_answered_as_a_share() -> None:
    assert texts(pod(cards()), card("a", used=(1, 2000, 0))) == ["fits if gpumem-percentage <= 75"]


def test_cores_and_count_each_alone() -> None:
    few = [card("a"), card("b", used=(1, 0, 80))]

    assert texts(pod(cards(memory_mib=1, count=2, core_percent=50)), *few) == [
        "fits if gpucores <= 20",
        "fits if gpu <= 1",
    ]


def test_a_selection_that_rules_everything_out_is_named() -> None:
    nobody = Selection(use_types=("H200",), avoid_uuids=("x",))

    assert texts(pod(cards(memory_mib=1), selection=nobody), card("a")) == [
        "fits without the wanted card types (H200)"
    ]


def test_two_selections_that_only_together_rule_out_are_named_together() -> None:
    nobody = Selection(use_types=("H200",), use_uuids=("x",))

    assert texts(pod(cards(memory_mib=1), selection=nobody), card("a")) == [
        "fits without the wanted card types (H200) and the wanted card uuids (x)"
    ]


def test_a_policy_that_wants_idle_cards_is_named() -> None:
    assert texts(pod(cards(memory_mib=1), gpu=("mutex",)), card("a", used=(1, 1, 0))) == [
        "fits without card policy mutex"
    ]


def test_of_several_containers_the_one_is_named() -> None:
    two = pod(
        container(cards(memory_mib=6000), name="one"), container(cards(memory_mib=4000), name="two")
    )

    assert texts(two, card("a")) == [
        "fits if gpumem <= 4000 MiB in container one",
        "fits if gpumem <= 2000 MiB in container two",
    ]


def test_the_end_of_the_smallest_pod_that_suffices_comes_first() -> None:
    view = view_of({"n": [card("a", used=(3, 7500, 0))]})
    held = [holding("big", "a", 5000), holding("small", "a", 500), holding("middle", "a", 2000)]

    found = [c for c in changes(pod(cards(memory_mib=2000)), view, held) if c.kind == "pods-end"]

    assert [change.pods for change in found] == [("ns/middle",), ("ns/big",)]
    assert found[0].text == "fits when pod ns/middle on n ends (it holds 2000 MiB of card 0)"


def test_when_no_single_end_suffices_the_fewest_are_named_together() -> None:
    view = view_of({"n": [card("a", used=(3, 7500, 0))]})
    held = [holding("x", "a", 3500), holding("y", "a", 500), holding("z", "a", 3500)]

    [found] = [c for c in changes(pod(cards(memory_mib=7000)), view, held) if c.kind == "pods-end"]

    assert found.pods == ("ns/x", "ns/z")


@pytest.mark.parametrize(
    ("wanted_mib", "pods"),
    [(2000, [("ns/low",), ("ns/equal",)]), (4500, [("ns/low", "ns/lower")])],
    ids=["one is enough", "two are needed"],
)
def test_pods_of_a_lower_priority_come_first_and_their_priority_is_named(
    wanted_mib: int, pods: list[tuple[str, ...]]
) -> None:
    view = view_of({"n": [card("a", used=(3, 8000, 0))]})
    held = [holding("equal", "a", 2000), holding("low", "a", 3000), holding("lower", "a", 3000)]
    priorities = {"default/pod": 1000, "ns/equal": 1000, "ns/low": 10, "ns/lower": 5}
    if wanted_mib == 2000:
        held = held[:2]

    answered = changes(pod(cards(memory_mib=wanted_mib)), view, held, priorities)

    found = [change for change in answered if change.kind == "pods-end"]
    assert [change.pods for change in found] == pods
    if wanted_mib == 2000:
        assert found[0].text.endswith("(it holds 3000 MiB of card 0, priority 10)")


def test_the_end_of_the_pod_itself_is_not_proposed() -> None:
    view = view_of({"n": [card("a", used=(1, 7500, 0))]})
    own = replace(holding("pod", "a", 7500), pod="default/pod")

    assert [c.kind for c in changes(pod(cards(memory_mib=2000)), view, [own])] == ["memory"]


def test_a_sick_card_is_shown_with_the_reason_and_since_when() -> None:
    since = datetime(2026, 11, 20, 10, tzinfo=UTC)
    usage = card("a", healthy=False)
    sick = replace(usage, device=replace(usage.device, health_reason="XID 79"))
    about = Circumstances(unhealthy_since={GpuUuid("a"): since}, names=NAMES)
    view = view_of({"n": [sick]})

    [found] = counterfactuals(pod(cards(memory_mib=1)), view, [NodeName("n")], about, ClusterView)

    assert found.text == (
        "fits when card 0 (a) on n is healthy again (XID 79 since 2026-11-20T10:00:00+00:00)"
    )


@pytest.mark.parametrize(("limit", "answer"), [(0, None), (1, 1), (7, 7), (10, 10), (99, 10)])
def test_the_largest_that_fits_is_found(limit: int, answer: int | None) -> None:
    assert largest(lambda amount: amount <= limit, 1, 10) == answer


used = st.tuples(st.integers(0, 10), st.integers(0, 8000), st.integers(0, 100))
some_cards = st.lists(st.tuples(used, st.booleans(), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    st.lists(some_cards, min_size=1, max_size=3),
    st.integers(1, 9000),
    st.integers(0, 100),
    st.integers(1, 3),
)
def test_an_amount_that_is_named_fits_and_one_more_does_not(
    nodes: list[list[tuple[tuple[int, int, int], bool, bool]]], memory: int, core: int, count: int
) -> None:
    view = view_of(
        {
            f"n{n}": [
                card(f"g{n}-{c}", used=u, healthy=h, cordoned=s)
                for c, (u, h, s) in enumerate(states)
            ]
            for n, states in enumerate(nodes)
        }
    )
    request = pod(cards(memory_mib=memory, core_percent=core, count=count))
    if decide(request, view).placement is not None:
        return
    fields = {"memory": "memory_mib", "cores": "core_percent", "count": "count"}
    wanted = request.containers[0].requests[0]

    for change in changes(request, view):
        if change.kind in fields:
            assert change.limit is not None
            for amount, fits in ((change.limit, True), (change.limit + 1, False)):
                asked = replace(wanted, **{fields[change.kind]: amount})
                assert (decide(pod(asked), view).placement is not None) == fits


def test_a_search_that_takes_too_long_ends_and_reports_it() -> None:
    full = view_of({"n": [card("a", used=(1, 7900, 0))]})
    request = pod(cards(memory_mib=4000))
    about = Circumstances(names=NAMES)

    found = list(counterfactuals(request, full, ["n"], about, ClusterView, budget_s=0.0))

    assert [(change.kind, change.text) for change in found] == [
        ("unfinished", "not everything was tried: the search ended after 0 s")
    ]


def test_what_was_found_before_the_time_was_over_is_given() -> None:
    ticks = iter(range(1000))
    trials = Trials(3, clock=lambda: next(ticks))
    free, request = view_of({"n": [card("a")]}), pod(cards(memory_mib=4000))

    asked = [trials.fits(request, view=free, candidates=["n"]) for _ in range(3)]

    assert asked == [True, True, True]
    with pytest.raises(SearchTimeout):
        trials.fits(request, view=free, candidates=["n"])
