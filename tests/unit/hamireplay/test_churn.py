"""Pods that arrive, wait, run and end: with numbers computed by hand, and without leaks."""

import pytest
from hamicommon.errors import InvalidRequest
from hamireplay.churn import ChurnCourse, Stay, Window, run_churn
from hamireplay.policies import NAMES, cluster_under, engine_cluster
from hamireplay.schedule import FOREVER, arrivals, as_it_was, by_load, offered_percent
from hamireplay.trace import Trace, TracePod

from tests.unit.hamireplay.test_arriving import make_trace, node, pod

ONE = Trace(nodes=[node("n", cards=1)], pods=[pod("p")])


def replay(
    *stays: Stay, policy: str = "binpack", until: float = 100.0, trace: Trace = ONE
) -> ChurnCourse:
    return run_churn(
        stays,
        cluster_under(policy, trace, trace.nodes),
        Window(0.0, until),
        capacity_milli=1000 * trace.cards,
    )


def make_pods(number: int, trace: Trace) -> list[TracePod]:
    return [
        pod(
            each.name,
            cards=each.cards,
            milli=each.card_milli,
            cpu=each.cpu_milli,
            arrives_s=float(at),
            ends_s=float(at + 10 + 7 * (at % 11)),
        )
        for at, each in enumerate(trace.pods * number)
    ]


def test_who_finds_no_room_waits_until_a_pod_ends() -> None:
    course = replay(Stay(pod("a"), 0, 40), Stay(pod("b"), 10, 40))

    assert course.waited == {"1 card": 1}
    assert course.refused == {}
    assert course.in_use == pytest.approx(80)
    assert course.waiting == pytest.approx(30)
    assert course.waiting_pods == pytest.approx(0.3)
    assert course.mean_wait_s == pytest.approx(15)
    assert course.longest_wait_s == pytest.approx(30)
    assert course.card_hours == pytest.approx(80 / 3600)


def test_the_first_to_come_is_served_first_and_smaller_pods_fill_what_is_left() -> None:
    big, small = pod("big"), pod("small", milli=300)
    course = replay(
        Stay(pod("a", milli=500), 0, 50), Stay(big, 10, 20), Stay(small, 20, 100), until=100
    )
    # The card's other half is free for the small one at 20; the big one has to wait for both.
    assert course.waited == {"1 card": 1}
    assert course.refused == {"1 card": 1}
    assert course.longest_wait_s == pytest.approx(90)


def test_pods_that_differ_in_host_memory_alone_do_not_wait_for_one_another() -> None:
    def asking(memory_mib: int) -> TracePod:
        return TracePod(name="m", cpu_milli=0, memory_mib=memory_mib, cards=1, card_milli=500)

    course = replay(
        Stay(asking(6000), 0, 100), Stay(asking(6000), 1, 100), Stay(asking(100), 2, 100)
    )
    assert course.waited == {"share": 1}


def test_patience_ends_a_wait() -> None:
    course = replay(
        Stay(pod("a"), 0, 60), Stay(pod("b"), 10, 40, patience_s=20), Stay(pod("c"), 15, 10)
    )
    assert course.refused == {"1 card": 1}
    assert course.longest_wait_s == pytest.approx(45)
    assert course.in_use == pytest.approx(70)


def test_who_came_before_the_window_is_not_counted_but_holds_cards() -> None:
    stays = [Stay(pod("a"), 0, 70), Stay(pod("b"), 60, 10)]
    course = run_churn(
        stays, cluster_under("binpack", ONE, ONE.nodes), Window(50.0, 100.0), capacity_milli=1000
    )
    assert course.arrived == 1
    assert course.in_use == pytest.approx(60)
    assert course.curve[1] == pytest.approx(100)
    assert course.curve[100] == pytest.approx(0)


@pytest.mark.parametrize("window", [(0.1, 7.3), (3.3, 1207.7)])
def test_the_curve_of_constant_use_is_level(window: tuple[float, float]) -> None:
    begins, ends = window
    late = [Stay(pod(f"w{at}"), begins + at * (ends - begins) / 37, 1) for at in range(37)]
    course = run_churn(
        [Stay(pod("a"), 0, FOREVER), *late],
        cluster_under("binpack", ONE, ONE.nodes),
        Window(begins, ends),
        capacity_milli=1000,
    )

    assert list(course.curve) == list(range(1, 101))
    assert list(course.curve.values()) == pytest.approx([100.0] * 100)


@pytest.mark.parametrize("policy", NAMES)
def test_when_all_have_ended_nothing_is_left_and_none_is_refused(policy: str) -> None:
    trace = make_trace(nodes=3, pods=60)
    stays, _ = as_it_was(make_pods(2, trace))
    cluster = cluster_under(policy, trace, trace.nodes)

    course = run_churn(stays, cluster, Window(0.0, 5000.0), capacity_milli=1000 * trace.cards)

    assert course.refused == {}
    demand = sum(s.pod.cards * s.pod.card_milli * s.runs_s for s in stays) / 1000 / 3600
    assert course.card_hours == pytest.approx(demand)
    whole = [pod(f"w{number}") for number in range(trace.cards)]
    assert all(cluster.take(each) for each in whole)


def test_a_wait_ends_as_soon_as_any_node_has_room() -> None:
    """Asking only the freed node has the same result as asking all."""
    trace = make_trace(nodes=3, pods=60)
    stays, window = as_it_was(make_pods(3, trace))

    class EveryNode:
        def __init__(self) -> None:
            self.cluster = engine_cluster("binpack", trace, trace.nodes)
            self.late = 0

        def take(self, one: TracePod, row: int | None = None):  # type: ignore[no-untyped-def]
            held = self.cluster.take(one, row)
            if held is None and row is not None:
                other = self.cluster.take(one)
                self.late += other is not None
                if other is not None:
                    self.cluster.give_back(one, other)
            return held

        def give_back(self, one: TracePod, held) -> None:  # type: ignore[no-untyped-def]
            self.cluster.give_back(one, held)

    asked = EveryNode()
    course = run_churn(stays, asked, window, capacity_milli=1000 * trace.cards)

    assert sum(course.waited.values()) > 20
    assert asked.late == 0


def test_gaps_are_scaled_to_the_mean_load() -> None:
    trace = make_trace(nodes=6, pods=60)
    trace = Trace(nodes=trace.nodes, pods=make_pods(1, trace))
    order = arrivals(trace, 3, load=4.0)

    for load in (0.7, 0.95):
        stays, window = by_load(order, 3, mean_load=load, capacity_milli=12_000)
        assert offered_percent(stays, window, capacity_milli=12_000) == pytest.approx(
            100 * load, rel=0.02
        )
        assert [stay.pod for stay in stays] == order


def test_without_times_there_is_nothing_to_scale() -> None:
    with pytest.raises(InvalidRequest, match="pod p: creation_time is absent"):
        by_load(ONE.pods, 1, mean_load=0.7, capacity_milli=1000)
    ends = [pod(name, arrives_s=0.0, ends_s=1.0) for name in "ab"]
    with pytest.raises(InvalidRequest, match="--mean-load 500% can't be reached with 2 pods"):
        by_load(ends, 1, mean_load=5.0, capacity_milli=1000)


def test_at_its_own_times_a_pod_runs_from_its_start_and_an_unknown_one_as_the_median() -> None:
    ran = [
        pod("late", arrives_s=5.0, starts_s=9.0, ends_s=29.0),
        pod("first", arrives_s=0.0, ends_s=10.0),
        pod("goes on", arrives_s=1.0),
        pod("never", arrives_s=7.0, gone_s=11.0, ran=False),
    ]
    stays, window = as_it_was(ran, until_s=50.0)

    assert [(s.pod.name, s.runs_s, s.patience_s) for s in stays] == [
        ("first", 10.0, FOREVER),
        ("goes on", FOREVER, FOREVER),
        ("late", 20.0, FOREVER),
        ("never", 15.0, 4.0),
    ]
    assert window == (0.0, 50.0)
