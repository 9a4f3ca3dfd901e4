"""The overview: which nodes stand together, what is shown of each, and to whom."""

from __future__ import annotations

from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.domain.capacity import NodeTallies, totals
from hami_metrics.pages.domain.cluster import Occurrence
from hami_metrics.pages.views.elements.grid import row
from hami_metrics.pages.views.elements.viewer import EVERYBODY, PageViewer
from hami_metrics.pages.views.overview import GridFilter, overview

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


def test_what_became_of_one_pod_lately_is_one_line_and_the_newest() -> None:
    def became(state: str, uid: str) -> Occurrence:
        return Occurrence(
            at=NOW,
            pod_uid=uid,
            namespace="nlp",
            pod_name=uid,
            node="n1",
            state=state,
            reason="",
        )

    recent = (became("allocated", "a"), became("reserved", "b"), became("bound", "a"))
    state = a_state(a_node("n1", a_card(0)), recent=recent)

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)
    assert [(one.pod_uid, one.state) for one in page.recent] == [
        ("a", "allocated"),
        ("b", "reserved"),
    ]


def test_who_may_not_list_a_namespace_sees_sizes_alone() -> None:
    node = a_node(
        "n1", a_card(0, "n1", a_holder("secret", "vision", 16384), a_holder("mine", "nlp", 8192))
    )
    state = a_state(node)
    viewer = PageViewer(namespaces=frozenset({"nlp"}))
    page = overview(state, totals(state), viewer, GridFilter(), NOW)
    html = row(node, page.style, NOW)

    assert "vision" not in html
    assert "secret" not in html
    assert "other 16 GiB, nlp/mine 8 GiB" in html
    assert [owner.namespace for owner in page.owners.legend] == ["nlp"]
    # Nor is it found by what it is called.
    hidden = overview(state, totals(state), viewer, GridFilter(text="secret"), NOW)
    assert hidden.shown == 0
    namespaces = PageViewer(namespaces=frozenset(), show=ShowOwners.NAMESPACES)
    assert namespaces.pod("vision", "secret") == "vision"


def test_many_nodes_are_folded_but_never_one_with_a_problem() -> None:
    nodes = [a_node(f"n{n:04}", a_card(0, f"n{n:04}", healthy=n != 130)) for n in range(250)]
    state = a_state(*nodes)

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)
    assert [group.open for group in page.groups] == [True, False, True, False, False]
    only = overview(state, totals(state), EVERYBODY, GridFilter(problems=True), NOW)
    assert (only.shown, only.nodes) == (1, 250)


def test_what_was_counted_before_makes_no_other_page() -> None:
    tallies = NodeTallies()
    for sick in (3, 7):
        nodes = [a_node(f"n{n}", a_card(0, f"n{n}", healthy=n != sick)) for n in range(120)]
        state = a_state(*nodes)

        kept = overview(state, totals(state), EVERYBODY, GridFilter(), NOW, tallies=tallies)

        assert kept.groups == overview(state, totals(state), EVERYBODY, GridFilter(), NOW).groups


def test_nodes_of_one_rack_stand_together_and_those_without_one_last() -> None:
    racks = {"n1": "rack-02", "n2": "", "n3": "rack-01", "n4": "rack-02"}
    cards = {name: a_card(0, name, healthy=name != "n4") for name in racks}
    state = a_state(*(a_node(name, cards[name], group=racks[name]) for name in racks))

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)
    by_name = overview(state, totals(state), EVERYBODY, GridFilter(group="name"), NOW)

    found = [(group.name, [node.name for node in group.nodes]) for group in page.groups]
    assert found == [
        ("rack-01", ["n3"]),
        ("rack-02", ["n1", "n4"]),
        ("without a rack or zone", ["n2"]),
    ]
    assert [group.sick for group in page.groups] == [0, 1, 0]
    assert [group.label for group in page.groups] == ["rack-01", "rack-02", ""]
    assert page.labelled
    one = overview(state, totals(state), EVERYBODY, GridFilter(text="Rack-02"), NOW)
    assert [group.name for group in one.groups] == ["rack-02"]
    assert [group.name for group in by_name.groups] == ["n1 to n4"]
    assert GridFilter(group="name").query() == {"group": "name"}


def test_without_racks_nodes_stand_together_by_name_and_there_is_no_choice() -> None:
    state = a_state(a_node("n1", a_card(0, "n1")), a_node("n2", a_card(0, "n2")))

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)

    assert [group.name for group in page.groups] == ["n1 to n2"]
    assert not page.labelled
