"""The table of rules and reasons: every row is complete, and the derived tables agree."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.host_scores import host_costs, host_levels, host_scores
from hamicommon.placement.node_policies import STEP_MILLI
from hamicommon.placement.node_scores import NodeScores
from hamicommon.placement.rules import (
    NODE_REASONS,
    NOT_ASKED,
    OTHER,
    POD_REFUSED,
    REASON_LABELS,
    RULES,
    TERMS,
    Rule,
    reason_label,
    reason_term,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters

REFUSING = [rule for rule in Rule if rule not in (Rule.FITS, Rule.NO_CARD)]


@pytest.mark.parametrize("rule", REFUSING)
def test_every_rule_has_all_of_its_texts(rule: Rule) -> None:
    assert RULES[rule.row.number] is rule
    assert all((rule.reason, rule.row.group, rule.row.term, rule.row.help))
    assert rule.row.unit in ("", "MiB", "percent", "slots")
    assert rule.reason in REASON_LABELS


def test_rules_of_one_code_have_one_term() -> None:
    terms = defaultdict(set)
    for rule in REFUSING:
        terms[rule.reason].add(rule.row.term)

    assert [code for code, found in terms.items() if len(found) > 1] == []
    assert terms.keys().isdisjoint(NODE_REASONS)


@pytest.mark.parametrize(
    ("reason", "label", "term"),
    [
        ("CardInsufficientMemory", "CardInsufficientMemory", "memory"),
        ("node-agent silent", "node-agent silent", "silent agents"),
        (f"{POD_REFUSED}: no such amount", POD_REFUSED, f"{POD_REFUSED}: no such amount"),
        ("a vendor's own", OTHER, "a vendor's own"),
        ("", "", ""),
    ],
)
def test_a_reason_has_a_label_of_a_fixed_set_and_a_term(reason: str, label: str, term: str) -> None:
    assert reason_label(reason) == label
    assert reason_term(reason) == term


def test_a_pod_that_was_never_asked_about_has_a_term_and_no_label() -> None:
    assert NOT_ASKED in TERMS
    assert NOT_ASKED not in REASON_LABELS


# --- scores of the nodes that fit, as arrays until they are read


A, B, C = map(NodeName, "abc")
names = st.text("abcdef", min_size=1, max_size=3).map(NodeName)
floats = st.floats(0, 30, width=32)


@given(st.dictionaries(names, floats), st.integers(0, 5))
def test_it_reads_as_the_mapping_it_stands_for(scores: dict[NodeName, float], count: int) -> None:
    made = NodeScores.of(scores)

    assert dict(made) == scores
    assert list(made) == list(scores)
    assert len(made) == len(scores)
    assert made.best(count) == list(scores.items())[::-1][:count]
    assert made.all_equal == (len(set(scores.values())) <= 1)


def test_rows_that_do_not_fit_are_not_in_it() -> None:
    made = NodeScores((A, B, C), np.array([2, 0]), np.array([1.0, 3.0], np.float32))

    assert dict(made) == {C: 1.0, A: 3.0}
    assert made.best(1) == [(A, 3.0)]


def test_a_decision_keeps_its_scores_when_nodes_go() -> None:
    view = clusters.view_of({"a": [clusters.card("GPU-a")], "b": [clusters.card("GPU-b")]})
    scores = decide(clusters.pod(clusters.cards(memory_mib=1)), view).scores

    view.remove_node(A)

    assert set(scores) == {A, B}


# --- scores of nodes for pods without cards, as kube-scheduler is answered


IDLE, FULL = (0, 0, 0), (1, 1, 100)
CPU_OF_A_CARD = 4000
MIX = Mix.of(
    PodShape(
        request=DeviceRequest(vendor="NVIDIA", count=count, memory_mib=1, core_percent=cores),
        cpu_milli=count * CPU_OF_A_CARD * cores // 100,
    )
    for count, cores in ((1, 100), (1, 100), (1, 50), (2, 100))
)


def node(name: str, *used: tuple[int, int, int]) -> list[DeviceUsage]:
    return [clusters.card(f"{name}-{at}", index=at, used=each) for at, each in enumerate(used)]


def view_of(**nodes: tuple[int | None, list[DeviceUsage]]) -> ClusterView:
    """Make nodes with their free CPU in thousandths of a core; None: it is unknown."""
    view = clusters.view_of({name: cards for name, (_, cards) in nodes.items()})
    for name, (cpu_milli, _) in nodes.items():
        view.set_free_cpu(NodeName(name), cpu_milli)
    view.usual.give(MIX)
    return view


def scores(view: ClusterView, cpu_milli: int, *names: str) -> dict[str, int]:
    found = host_scores(cpu_milli, view, [NodeName(name) for name in names or sorted(view.nodes)])
    return {str(name): score for name, score in found.items()}


def test_the_cpu_beside_an_idle_card_is_left_alone() -> None:
    view = view_of(idle=(4000, node("idle", IDLE)), full=(4000, node("full", FULL)))

    found = scores(view, 2000)

    assert found["full"] == 9
    assert found["idle"] == 0


def test_a_node_that_has_more_cpu_than_its_cards_need_is_as_good_as_one_whose_cards_are_full() -> (
    None
):
    view = view_of(rich=(64_000, node("rich", IDLE)), full=(4000, node("full", FULL)))

    assert scores(view, 2000) == {"rich": 9, "full": 9}


def test_a_node_without_a_card_is_the_best() -> None:
    view = view_of(full=(64_000, node("full", FULL)), gone=(8000, []))

    assert scores(view, 1000, "full", "gone", "never-seen") == {
        "full": 9,
        "gone": 10,
        "never-seen": 10,
    }


def test_where_the_free_cpu_is_not_known_nothing_is_known_to_be_lost() -> None:
    view = view_of(dark=(None, node("dark", IDLE)), idle=(4000, node("idle", IDLE)))

    assert scores(view, 4000)["dark"] == 9


def test_a_pod_that_asks_for_no_cpu_may_go_anywhere() -> None:
    view = view_of(a=(4000, node("a", IDLE)), b=(0, node("b", IDLE)), c=(9000, node("c", FULL)))

    assert set(scores(view, 0).values()) == {9}


def test_each_step_that_is_lost_more_is_one_less_and_nothing_is_below_0() -> None:
    lost = np.array([0, 1, 2, 8, 9, 40], np.float32) * np.float32(STEP_MILLI)

    assert host_levels(-lost).tolist() == [9, 8, 7, 1, 0, 0]
    # What the best of the nodes loses is lost anyway.
    assert host_levels(-lost[1:]).tolist() == [9, 8, 2, 1, 0]


def test_nobody_is_asked_about_no_node() -> None:
    assert host_scores(1000, ClusterView(), []) == {}


def test_an_answer_holds_until_the_node_changes() -> None:
    view = view_of(a=(4000, node("a", IDLE)), b=(4000, node("b", IDLE)))
    assert scores(view, 2000) == {"a": 9, "b": 9}

    view.set_free_cpu(NodeName("a"), 64_000)
    assert scores(view, 2000) == {"a": 9, "b": 0}

    view.apply(GpuUuid("b-0"), slots=1, memory_mib=1, core_percent=100, version=2)
    assert scores(view, 2000) == {"a": 9, "b": 9}

    view.set_node(NodeName("a"), [CardState(each, 1) for each in node("other", IDLE)])
    view.set_free_cpu(NodeName("a"), 4000)
    assert scores(view, 2000) == {"a": 0, "b": 9}


def test_thousands_of_nodes_are_answered_as_a_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamicommon.fragmentation.policy._MAX_TOGETHER", 2)
    nodes = {f"n{at}": (1500 * at, node(f"n{at}", IDLE, FULL)) for at in range(7)}
    rows: Int = np.arange(7)

    together = host_costs(2000, view_of(**nodes), rows)

    monkeypatch.undo()
    assert together.tolist() == host_costs(2000, view_of(**nodes), rows).tolist()
    assert len(set(together.tolist())) > 1


CPU = st.integers(0, 40_000)
USED = st.sampled_from([IDLE, FULL, (1, 1, 50), (2, 2, 85)])
NODES = st.lists(st.tuples(CPU, st.lists(USED, min_size=1, max_size=4)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(nodes=NODES, cpu_milli=CPU, changes=st.lists(st.tuples(st.integers(0, 7), CPU), max_size=4))
def test_their_order_is_that_in_which_a_replay_places(
    nodes: list[tuple[int, list[tuple[int, int, int]]]],
    cpu_milli: int,
    changes: list[tuple[int, int]],
) -> None:
    names = [f"n{at}" for at in range(len(nodes))]
    view = view_of(
        **{name: (cpu, node(name, *used)) for name, (cpu, used) in zip(names, nodes, strict=True)}
    )
    for at, cpu in changes:
        scores(view, cpu_milli)
        view.set_free_cpu(NodeName(names[at % len(names)]), cpu)
    rows, _ = view.rows_of([NodeName(name) for name in names])

    costs = host_costs(cpu_milli, view, rows)
    found = scores(view, cpu_milli)

    # From the node that a replay would take to the last that it would.
    order = sorted(range(len(names)), key=lambda at: (-costs[at], names[at]))
    assert all(found[names[a]] >= found[names[b]] for a, b in pairwise(order))
    assert found[names[order[0]]] == 9
    assert min(found.values()) >= 0
    # Kept answers are those of a view that has been asked nothing before.
    fresh = view_of(
        **{
            name: (int(view.free_cpu(rows)[at]), node(name, *nodes[at][1]))
            for at, name in enumerate(names)
        }
    )
    assert costs.tolist() == host_costs(cpu_milli, fresh, rows).tolist()
