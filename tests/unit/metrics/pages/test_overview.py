"""The overview: which nodes stand together, what is shown of each, and to whom."""

from __future__ import annotations

from typing import Any

from hami_metrics.domain.redaction import EVERYBODY, PageViewer, ShowOwners
from hami_metrics.pages.cluster import PageCluster, SumCache, cluster_sums
from hami_metrics.pages.grid import GridStyle, grid_line, grid_style
from hami_metrics.pages.overview import GridFilter, Overview, grid_page

from tests.unit.metrics.pages.clusters import a_card, a_holder, a_node, a_state


def page_of(
    state: PageCluster, chosen: GridFilter | None = None, viewer: PageViewer = EVERYBODY
) -> Overview:
    style = grid_style(state, viewer)
    return grid_page(state, cluster_sums(state), chosen or GridFilter(), style)


def test_what_became_of_one_pod_lately_is_one_line_and_the_newest() -> None:
    def became(state: str, uid: str) -> dict[str, Any]:
        return {"pod_uid": uid, "state": state}

    recent = (became("allocated", "a"), became("reserved", "b"), became("bound", "a"))
    state = a_state(a_node("n1", a_card(0)), recent=recent)

    page = page_of(state)
    assert [(one["pod_uid"], one["state"]) for one in page.recent] == [
        ("a", "allocated"),
        ("b", "reserved"),
    ]


def test_who_may_not_list_a_namespace_sees_sizes_alone() -> None:
    node = a_node(
        "n1", a_card(0, "n1", a_holder("secret", "vision", 16384), a_holder("mine", "nlp", 8192))
    )
    state = a_state(node)
    viewer = PageViewer(namespaces=frozenset({"nlp"}))
    page = page_of(state, viewer=viewer)
    html = grid_line(node, page.style, silent=False)

    assert "vision" not in html
    assert "secret" not in html
    assert "other 16 GiB, nlp/mine 8 GiB" in html
    assert [name for name, _ in page.owners] == ["nlp"]
    # Nor is it found by what it is called.
    hidden = page_of(state, GridFilter(text="secret"), viewer)
    assert hidden.shown == 0
    namespaces = PageViewer(namespaces=frozenset(), show=ShowOwners.NAMESPACES)
    assert namespaces.pod("vision", "secret") == "vision"


def test_many_nodes_are_folded_but_never_one_with_a_problem() -> None:
    nodes = [a_node(f"n{n:04}", a_card(0, f"n{n:04}", healthy=n != 130)) for n in range(250)]
    state = a_state(*nodes)

    page = page_of(state)
    assert [group.open for group in page.groups] == [True, False, True, False, False]
    only = page_of(state, GridFilter(problems=True))
    assert (only.shown, only.nodes) == (1, 250)


def test_what_was_counted_before_makes_no_other_page() -> None:
    known = SumCache()
    for sick in (3, 7):
        nodes = [a_node(f"n{n}", a_card(0, f"n{n}", healthy=n != sick)) for n in range(120)]
        state = a_state(*nodes)
        style = grid_style(state, EVERYBODY)

        kept = grid_page(state, cluster_sums(state), GridFilter(), style, known)

        assert kept.groups == page_of(state).groups


def test_a_group_with_a_card_that_is_not_so_now_is_unfolded() -> None:
    nodes = [a_node(f"n{number:03}", a_card(0, f"n{number:03}")) for number in range(150)]
    state = a_state(*nodes, past=True)
    style = GridStyle(viewer=EVERYBODY, named=False, differing=frozenset({"GPU-n149-0"}))

    page = grid_page(state, cluster_sums(state), GridFilter(), style)

    assert [group.open for group in page.groups] == [True, False, True]


def test_owners_are_those_whose_names_one_may_read_the_largest_first() -> None:
    holders = [a_holder("a", "nlp", 1024), a_holder("b", "vision", 3072)]
    state = a_state(a_node("n1", a_card(0, "n1", *holders)))

    assert page_of(state).owners == [("vision", 75.0), ("nlp", 25.0)]
    mine = page_of(state, viewer=PageViewer(namespaces=frozenset({"nlp"})))
    assert mine.owners == [("nlp", 25.0)]


def test_nodes_of_one_rack_stand_together_and_those_without_one_last() -> None:
    racks = {"n1": "rack-02", "n2": "", "n3": "rack-01", "n4": "rack-02"}
    cards = {name: a_card(0, name, healthy=name != "n4") for name in racks}
    state = a_state(*(a_node(name, cards[name], group=racks[name]) for name in racks))

    page = page_of(state)
    by_name = page_of(state, GridFilter(group="name"))

    found = [(group.name, [node.name for node in group.nodes]) for group in page.groups]
    assert found == [
        ("rack-01", ["n3"]),
        ("rack-02", ["n1", "n4"]),
        ("without a rack or zone", ["n2"]),
    ]
    assert [group.sick for group in page.groups] == [0, 1, 0]
    assert [group.label for group in page.groups] == ["rack-01", "rack-02", ""]
    assert page.labelled
    one = page_of(state, GridFilter(text="Rack-02"))
    assert [group.name for group in one.groups] == ["rack-02"]
    assert [group.name for group in by_name.groups] == ["n1 to n4"]
    assert GridFilter(group="name").query() == {"group": "name"}


def test_without_racks_nodes_stand_together_by_name_and_there_is_no_choice() -> None:
    state = a_state(a_node("n1", a_card(0, "n1")), a_node("n2", a_card(0, "n2")))

    page = page_of(state)

    assert [group.name for group in page.groups] == ["n1 to n2"]
    assert not page.labelled
