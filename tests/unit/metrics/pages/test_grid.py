"""The grid: cells, what one sees of their holders, and lines that are written again on change."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

from hami_metrics.domain.redaction import EVERYBODY
from hami_metrics.pages.cluster import PageNode
from hami_metrics.pages.grid import MAX_NAMING_NODES, GridStyle, LineCache, grid_line, grid_style
from markupsafe import escape

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state

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
    assert differs[1].endswith("; not so now")
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
