"""All nodes and all pods as tables: filters, order, pages, and whose names one sees."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hami_metrics.domain.redaction import EVERYBODY, PageViewer
from hami_metrics.pages.cluster import MeasuredUse, PageCluster
from hami_metrics.pages.lists import (
    NODE_SORTS,
    POD_SORTS,
    PodCache,
    group_sums,
    node_lines,
    pod_lines,
    with_use,
)

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state

GIB = 1024


def a_cluster() -> PageCluster:
    both = a_holder("both", "ads", 4 * GIB)
    state: PageCluster = a_state(
        a_node("n1", a_card(0, "n1", a_holder("train-1", "nlp", 8 * GIB), both)),
        a_node("n2", a_card(0, "n2", both), a_card(1, "n2", healthy=False)),
        a_node("n3", a_card(0, "n3", type="NVIDIA T4"), heard_s=600),
        use={"GPU-n1-0": MeasuredUse(memory_mib=2048.0, core_percent=40.0, at=NOW)},
    )
    return state


def test_a_node_that_nobody_measures_has_unknown_use_and_never_zero() -> None:
    n1, n2, n3 = node_lines(a_cluster(), text="", sort="name")

    assert (n1.used_mib, n1.core_used_percent, n1.granted_mib, n1.pods) == (2048.0, 40.0, 12288, 2)
    assert (n2.used_mib, n2.core_used_percent) == (None, None)
    assert (n2.sick, n2.sums.held, n2.granted_mib) == (1, 1, 4 * GIB)
    assert n3.silent


def a_sample(card: str, memory_mib: float | None, pod_uid: str) -> dict[str, Any]:
    return {
        "at": NOW,
        "device_uuid": card,
        "pod_uid": pod_uid,
        "container": "main",
        "memory_mib": memory_mib,
        "core_percent": 10.0,
    }


def test_use_of_a_pod_is_the_sum_of_its_slices_and_unknown_if_one_is() -> None:
    lines, _ = pod_lines(a_cluster(), EVERYBODY, text="both", owner="", sort="name")
    known = [a_sample("GPU-n1-0", 512.0, "uid-both"), a_sample("GPU-n2-0", 256.0, "uid-both")]
    other = a_sample("GPU-n1-0", 9.0, "uid-train-1")

    [measured] = with_use(lines, [*known, other])
    [half] = with_use(lines, [known[0], a_sample("GPU-n2-0", None, "uid-both")])

    assert measured.use == MeasuredUse(memory_mib=768.0, core_percent=20.0, at=NOW)
    assert half.use is not None
    assert half.use.memory_mib is None
    assert with_use(lines, [other])[0].use is None


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("name", ["n1", "n2", "n3"]),
        ("free", ["n2", "n3", "n1"]),
        ("used", ["n1", "n2", "n3"]),
        ("problems", ["n3", "n2", "n1"]),
    ],
)
def test_nodes_stand_in_the_order_that_was_chosen(sort: str, names: list[str]) -> None:
    lines = node_lines(a_cluster(), text="", sort=sort)

    assert [line.node.name for line in lines] == names


def test_nodes_are_found_by_their_name_and_their_cards_type() -> None:
    found = [node_lines(a_cluster(), text=text, sort="name") for text in ("N2", "t4", "t5")]

    assert [[line.node.name for line in lines] for lines in found] == [["n2"], ["n3"], []]


def test_lines_of_a_node_that_did_not_change_are_those_of_the_page_before() -> None:
    cache, before = PodCache(), a_cluster()
    first = cache.lines(before)
    n2 = a_node("n2", a_card(0, "n2", a_holder("new", "ads")))
    after = a_state(before.nodes["n1"], n2)

    second = cache.lines(after)

    assert [line.name for line in first] == ["train-1", "both"]
    assert [line.name for line in second] == ["train-1", "both", "new"]
    assert second[0] is first[0]
    assert [card.uuid for card in second[1].cards] == ["GPU-n1-0"]


def test_a_pod_is_one_line_over_all_its_cards() -> None:
    lines, of = pod_lines(a_cluster(), EVERYBODY, text="", owner="ads", sort="name")

    [both] = lines
    assert of == 2
    assert [card.uuid for card in both.cards] == ["GPU-n1-0", "GPU-n2-0"]
    assert (both.memory_mib, both.core_percent, both.use) == (8 * GIB, 60, None)
    assert both.since == NOW - timedelta(hours=1)


def test_pods_of_other_namespaces_are_neither_listed_nor_counted_nor_found() -> None:
    viewer = PageViewer(namespaces=frozenset({"nlp"}))

    lines, of = pod_lines(a_cluster(), viewer, text="", owner="", sort="name")
    assert ([line.name for line in lines], of) == (["train-1"], 1)
    assert pod_lines(a_cluster(), viewer, text="both", owner="", sort="name")[0] == []
    assert pod_lines(a_cluster(), viewer, text="", owner="ads", sort="name")[0] == []


@pytest.mark.parametrize("sort", [*POD_SORTS])
def test_every_order_of_pods_has_every_pod_once(sort: str) -> None:
    lines, _ = pod_lines(a_cluster(), EVERYBODY, text="", owner="", sort=sort)

    assert sorted(line.uid for line in lines) == ["uid-both", "uid-train-1"]


def test_every_order_that_a_page_offers_is_there() -> None:
    for sort in NODE_SORTS:
        assert len(node_lines(a_cluster(), text="", sort=sort)) == 3


def test_nodes_are_put_together_by_rack_with_their_sums() -> None:
    state = a_state(
        a_node("n1", a_card(0, "n1"), group="rack-2"),
        a_node("n2", a_card(0, "n2")),
        a_node("n3", a_card(0, "n3", a_holder()), a_card(1, "n3", healthy=False), group="rack-1"),
        a_node("n4", a_card(0, "n4", a_holder("x")), group="rack-2"),
    )

    lines = node_lines(state, text="", sort="group")

    assert [line.node.name for line in lines] == ["n3", "n1", "n4", "n2"]
    sums = {name: tuple(one.values()) for name, one in group_sums(lines).items()}
    assert sums == {"rack-1": (1, 1, 2, 1), "rack-2": (2, 1, 2, 0), "": (1, 0, 1, 0)}
    found = node_lines(state, text="Rack-2", sort="name")
    assert [line.node.name for line in found] == ["n1", "n4"]
