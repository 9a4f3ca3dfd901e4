"""Orders of arrival, the published policies on numbers done by hand, and the engine's own."""

from collections import Counter

import numpy as np
import pytest
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamireplay.arriving import Course, Summary, run
from hamireplay.policies import NAMES, cluster_under, engine_cluster, parse_policies
from hamireplay.published import BestFit, Fgd
from hamireplay.schedule import arrivals, tie_order
from hamireplay.trace import Trace, TraceNode, TracePod


def node(name: str, *, cards: int = 2, cpu: int = 8000, model: str = "A") -> TraceNode:
    return TraceNode(
        name=NodeName(name), cpu_milli=cpu, memory_mib=10_000, cards=cards, model=model
    )


def pod(name: str, *, milli: int = 1000, cards: int = 1, cpu: int = 0, **more: object) -> TracePod:
    return TracePod(
        name=name,
        cpu_milli=cpu,
        memory_mib=0,
        cards=cards,
        card_milli=milli if cards else 0,
        **more,  # type: ignore[arg-type]
    )


def make_trace(nodes: int = 6, pods: int = 40) -> Trace:
    kinds = [{"milli": 810}, {"milli": 470}, {}, {"cards": 2}, {"milli": 320}, {"cards": 0}]
    return Trace(
        nodes=[node(f"n{number}") for number in range(nodes)],
        pods=[
            pod(f"p{number:02d}", cpu=200 * (number % 7), **kinds[number % len(kinds)])  # type: ignore[arg-type]
            for number in range(pods)
        ],
    )


def test_the_order_is_random_and_the_same_for_one_seed() -> None:
    trace = make_trace()

    assert arrivals(trace, 1, load=1.0) == arrivals(trace, 1, load=1.0)
    assert arrivals(trace, 1, load=1.0) != arrivals(trace, 2, load=1.0)


def test_too_few_pods_are_drawn_again_at_the_end() -> None:
    trace = make_trace(nodes=40)
    order = arrivals(trace, 3, load=1.3)

    assert Counter(order[:40]) == Counter(trace.pods)
    demand = sum(each.cards * each.card_milli for each in order)
    assert 1.3 * 80_000 - 1000 < demand <= 1.3 * 80_000 + 1000


def test_of_too_many_pods_some_are_left_out() -> None:
    trace = make_trace(nodes=2)
    order = arrivals(trace, 3, load=1.3)

    assert not Counter(order) - Counter(trace.pods)
    assert sum(each.cards * each.card_milli for each in order) <= 1.3 * 4000


def test_ties_are_broken_by_an_order_of_nodes_that_the_seed_makes() -> None:
    nodes = [node(f"n{number}") for number in range(20)]
    first, second = (sorted(tie_order(nodes, seed), key=lambda n: n.name) for seed in (1, 2))

    assert [n.name.split("-")[1] for n in first] != [n.name.split("-")[1] for n in second]
    assert sorted(n.name.split("-")[1] for n in first) == sorted(n.name for n in nodes)


def worked_example() -> tuple[Trace, list[TraceNode]]:
    """Shapes A (4 cores, a card, 0.5), B (2 cores, 600 milli, 0.3), C (4 cores, no card, 0.2)."""
    pods = [pod(f"a{n}", cpu=4000) for n in range(5)]
    pods += [pod(f"b{n}", cpu=2000, milli=600) for n in range(3)]
    pods += [pod(f"c{n}", cpu=4000, cards=0) for n in range(2)]
    nodes = [node("x", cpu=8000), node("y", cpu=3000, cards=1)]
    return Trace(nodes=nodes, pods=pods), nodes


def test_fgd_scores_as_published() -> None:
    trace, nodes = worked_example()
    fgd = Fgd(trace, nodes)
    fgd.free[0] = [1000, 500]
    fgd.free[1] = [500, 0]
    share = pod("new", cpu=2000, milli=500)

    # By hand: F of x is 700, and 1000 or 200 with the share on its first or second card.
    scores, card = fgd.scores(share, np.array([0, 1]))
    assert scores.tolist() == [62, 62]
    assert card.tolist() == [1, 0]
    assert fgd.stranded_milli() == pytest.approx(700 + 500)


def test_bestfit_prefers_the_node_with_least_left() -> None:
    trace, nodes = worked_example()
    best = BestFit(trace, nodes)

    assert best.take(pod("new", cpu=2000)) is not None
    assert best.free.tolist() == [[1000, 1000], [0, 0]]


def test_references_count_one_number_per_card() -> None:
    trace = Trace(nodes=[node("a")], pods=[pod("p", milli=0, card_memory_mib=4000)])

    with pytest.raises(InvalidRequest, match="count one number per card"):
        Fgd(trace, trace.nodes)


@pytest.mark.parametrize("name", NAMES)
def test_no_policy_gives_more_than_there_is(name: str) -> None:
    trace = make_trace()
    order = arrivals(trace, 5, load=1.5)
    course = run(order, cluster_under(name, trace, trace.nodes), capacity_milli=12_000)

    assert course.arrived == len(order)
    assert course.placed + sum(course.refused.values()) == len(order)
    assert 60 < course.at(150) <= 100
    assert all(used <= load + 1 for load, used in course.curve.items())


@pytest.mark.parametrize("name", ["binpack", "spread", "fragmentation"])
def test_what_ends_can_be_taken_again(name: str) -> None:
    trace = make_trace()
    under = engine_cluster(name, trace, trace.nodes)
    held = [(each, under.take(each)) for each in trace.pods]
    for each, slices in held:
        if slices is not None:
            under.give_back(each, slices)

    fresh = engine_cluster(name, trace, trace.nodes)
    for kind in ({"cards": 2}, {"milli": 810}):
        while fresh.take(wanted := pod("again", **kind)):  # type: ignore[arg-type]
            assert under.take(wanted)
        assert not under.take(wanted)


def test_host_cpu_is_a_filter_of_every_policy() -> None:
    trace = Trace(nodes=[node("a", cpu=1000)], pods=[pod("p", cpu=2000)])

    assert not any(cluster_under(name, trace, trace.nodes).take(trace.pods[0]) for name in NAMES)


def test_a_model_is_a_filter_of_every_policy() -> None:
    trace = Trace(nodes=[node("a", model="A")], pods=[pod("p", models=("B",))])

    assert not any(cluster_under(name, trace, trace.nodes).take(trace.pods[0]) for name in NAMES)


def test_slices_of_memory_alone_are_replayed_too() -> None:
    nodes = [
        TraceNode(
            name=NodeName("a"),
            cpu_milli=8000,
            memory_mib=1000,
            cards=1,
            model="A",
            card_memory_mib=8000,
        )
    ]
    wanted = pod("p", milli=0, card_memory_mib=4000)
    under = cluster_under("fragmentation", Trace(nodes=nodes, pods=[wanted]), nodes)

    assert [under.take(wanted) is not None for _ in range(3)] == [True, True, False]


def test_the_mean_and_the_deviation_are_of_all_orders() -> None:
    def at_100(course: Course) -> float:
        return course.at(100)

    both = Summary(
        courses=[
            Course(curve={100: 90.0}, refused={"share": 4}),
            Course(curve={100: 94.0}, refused={}),
        ]
    )

    assert (both.mean(at_100), both.deviation(at_100), both.mean_refused("share")) == (
        92.0,
        2.0,
        2.0,
    )


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(
        InvalidRequest, match="policy 'bestfitt' is unknown: expected binpack, spread"
    ):
        parse_policies("fgd,bestfitt")


# --- slices that request only card memory: less is stranded, as with cores


CARD_MIB = 25_000
PERCENTS = (65, 65, 65, 47, 47, 47, 47, 32, 32, 32)
"""Slices of a card: 65 and 32 fill one, 47 and 47 nearly."""


def trace(*, of_memory: bool) -> Trace:
    """80 cards, and pods for all of them; each requests only memory, or only cores."""
    return Trace(
        nodes=[
            TraceNode(
                name=NodeName(f"n{number:02d}"),
                cpu_milli=64_000,
                memory_mib=100_000,
                cards=4,
                model="L4",
                card_memory_mib=CARD_MIB if of_memory else 0,
            )
            for number in range(20)
        ],
        pods=[
            TracePod(
                name=f"p{number:03d}",
                cpu_milli=500,
                memory_mib=0,
                cards=1,
                card_milli=0 if of_memory else 10 * percent,
                card_memory_mib=CARD_MIB * percent // 100 if of_memory else 0,
            )
            for number, percent in enumerate(PERCENTS * 10)
        ],
    )


def course(policy: str, seed: int, *, of_memory: bool = True) -> Course:
    """Run pods up to 130 % of the cards."""
    pods, memory_mib = trace(of_memory=of_memory), CARD_MIB if of_memory else 0
    return run(
        arrivals(pods, seed, load=1.3, card_memory_mib=memory_mib),
        cluster_under(policy, pods, tie_order(pods.nodes, seed)),
        capacity_milli=pods.cards * 1000,
        card_memory_mib=memory_mib,
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_of_the_memory_is_in_use_than_with_binpack(seed: int) -> None:
    ours = course("fragmentation", seed)

    for policy in ("binpack", "binpack-cards"):
        theirs = course(policy, seed)
        assert ours.at(100) > theirs.at(100) + 1.2
        assert ours.at(130) > theirs.at(130) + 0.7


@pytest.mark.parametrize("policy", ["fragmentation", "binpack-cards"])
def test_memory_is_granted_as_cores_are(policy: str) -> None:
    assert course(policy, 1).curve == course(policy, 1, of_memory=False).curve
