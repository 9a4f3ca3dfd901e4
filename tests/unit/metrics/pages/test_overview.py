"""The overview: groups of nodes, the data shown of each, and the viewers who see it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any

from hami_metrics.domain.redaction import EVERYBODY, PageViewer, ShowOwners
from hami_metrics.pages.cards import card_lines, changes, neighbours
from hami_metrics.pages.cluster import MeasuredUse, PageCluster, PageNode, SumCache, cluster_sums
from hami_metrics.pages.grid import MAX_NAMING_NODES, GridStyle, LineCache, grid_line, grid_style
from hami_metrics.pages.overview import GridFilter, Overview, grid_page
from markupsafe import escape

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


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
    # Nor does its name find it.
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


# --- pages of nodes and cards: the known facts of a card, and the changes next to a moment


def a_period(began_min: float, ended_min: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "allocation_id": f"{began_min}-{ended_min}",
        "pod_uid": "u",
        "namespace": "nlp",
        "pod_name": "p",
        "memory_mib": 1024,
        "core_percent": 10,
        "began_at": NOW - timedelta(minutes=began_min),
        "ended_at": None if ended_min is None else NOW - timedelta(minutes=ended_min),
        "state": "released",
        "reason": "",
        **changes,
    }


def test_steps_go_to_the_next_change_and_skip_none() -> None:
    moments = changes([a_period(60, 30), a_period(50, None)], ())
    at: datetime | None = NOW
    walked = []
    while at is not None:
        at, _ = neighbours(moments, at)
        walked.append(at)

    assert walked == [*reversed(moments), None]
    assert neighbours(moments, moments[0]) == (None, moments[1])


def test_a_card_that_is_not_measured_is_unknown_on_its_nodes_page() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder()), a_card(1))
    use = {"GPU-n1-0": MeasuredUse(memory_mib=4096.0, core_percent=12.0, at=NOW)}

    lines = card_lines(node.cards, use, (), silent=False)

    assert [line.used_mib for line in lines] == [4096.0, None]


def test_a_card_has_a_time_of_its_state_only_where_that_was_recorded() -> None:
    cards = [a_card(0, "n1", healthy=False), a_card(1, "n1", a_holder())]
    at = NOW - timedelta(minutes=7)
    health = [
        {"at": at, "device_uuid": f"GPU-n1-{index}", "healthy": index == 1} for index in (0, 1)
    ]

    lines = card_lines(cards, {}, health, silent=False)

    assert [line.unhealthy_since for line in lines] == [at, None]


# --- the grid: cells, what one sees of their holders, and lines that are written again on change


STYLE = GridStyle(viewer=EVERYBODY, named=True)


def cells(node: PageNode, style: GridStyle = STYLE) -> list[tuple[str, str, str]]:
    """Classes, label and sign of each cell."""
    found = re.findall(
        r'<a class="(c [^"]*)" href="[^"]*" tabindex=-1 aria-label="([^"]*)">(.)</a>',
        grid_line(node, style, silent=False),
    )
    return [(css, unescape(label), sign) for css, label, sign in found]


def test_a_cell_has_a_sign_a_bar_and_all_of_it_in_its_label() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder(memory_mib=40960)), a_card(1), a_card(2))

    held, free, _ = cells(node)

    assert held == (
        "c part f5 h",
        "n1 card 0: partly in use, 40 of 80 GiB, 30 % cores: nlp/train-1 40 GiB",
        "◐",
    )
    assert (free[0], free[2]) == ("c free f0", "○")


def test_labels_of_many_nodes_count_holders_and_name_none() -> None:
    names = [f"n{number:03}" for number in range(MAX_NAMING_NODES + 1)]
    state = a_state(*(a_node(name, a_card(0, name, a_holder())) for name in names))

    [(_, label, _)] = cells(state.nodes["n007"], grid_style(state, EVERYBODY))

    assert label.endswith(", 30 % cores, 1 pod")


def test_a_label_names_the_largest_holders_and_counts_the_others() -> None:
    holders = [a_holder(name, memory_mib=1024) for name in "abcde"]

    [(_, label, _)] = cells(a_node("n1", a_card(0, "n1", *holders)))

    assert label.endswith(": nlp/a 1 GiB, nlp/b 1 GiB, nlp/c 1 GiB and 2 more")


def test_hostile_names_are_text_in_the_grid() -> None:
    evil = '"><script>alert(1)</script>'
    node = a_node(evil, a_card(0, evil, a_holder(name=evil, namespace=evil)), group=evil)

    html = grid_line(node, STYLE, silent=False)

    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_card_that_differs_is_marked_and_labelled() -> None:
    style = GridStyle(viewer=EVERYBODY, named=True, differing=frozenset({"GPU-n1-0"}))

    differs, other = cells(a_node("n1", a_card(0), a_card(1)), style)

    assert differs[0].endswith(" differs")
    assert differs[1].endswith("; different now")
    assert "differs" not in other[0]


def test_a_line_is_written_again_when_its_node_changes_and_only_then() -> None:
    node = a_node("n1", a_card(0))
    state, lines = a_state(node), LineCache()
    first = lines.line(state, node, STYLE)

    assert lines.line(state, a_node("n1", heard_s=1, cards=node.cards), STYLE) is first
    assert lines.line(state, a_node("n1", a_card(0, healthy=False)), STYLE) != first
    assert "✖" not in first
    moved = a_node("n1", cards=node.cards, group="rack-2")
    assert 'data-group="rack-2"' in lines.line(state, moved, STYLE)
    later = a_state(node, taken_at=NOW + timedelta(minutes=5))
    assert "?" in lines.line(later, node, STYLE)


def test_lines_of_a_group_are_those_of_its_nodes_and_stay_escaped() -> None:
    nodes = [a_node("<u>", a_card(0, "<u>")), a_node("n2", a_card(0, "n2"))]
    state, lines = a_state(*nodes), LineCache()

    shown = lines.lines(state, nodes, STYLE)

    assert shown == "".join(str(lines.line(state, node, STYLE)) for node in nodes)
    assert "<u>" not in shown
    assert escape(shown) == shown
