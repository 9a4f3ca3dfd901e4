"""The grid: cells, whose they are, and lines that are made again only when they change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hami_metrics.pages.domain.capacity import totals
from hami_metrics.pages.views.elements.grid import RowCache, cells, row
from hami_metrics.pages.views.elements.owners import owners
from hami_metrics.pages.views.elements.viewer import EVERYBODY
from hami_metrics.pages.views.overview import grid_style
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


@given(
    st.dictionaries(st.text(min_size=1, max_size=9), st.integers(1, 10**6), max_size=20),
    st.datetimes(timezones=st.just(UTC)),
)
def test_every_letter_is_given_once_and_the_day_alone_changes_it(
    held: dict[str, int], moment: datetime
) -> None:
    largest_first = dict(sorted(held.items(), key=lambda item: -item[1]))
    found = owners(largest_first, moment)

    letters = [owner.letter for owner in found.legend]
    assert len(set(letters)) == len(letters) == min(8, len(held))
    assert found.rest == max(0, len(held) - 8)
    same_day = moment.replace(hour=1)
    assert owners(largest_first, same_day) == found


def test_a_cell_has_glyph_letter_and_all_of_it_in_its_label() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder(memory_mib=40960)), a_card(1), a_card(2))
    state = a_state(node)
    style = grid_style(state, totals(state), EVERYBODY, NOW)

    held, free, _ = cells(node, style, NOW)

    assert held.text == "◐" + style.owners.letter("nlp")
    assert held.css.split() == ["c", "part", "f5", "h", style.owners.css("nlp")]
    assert held.label == ("n1 card 0: partly in use, 40 of 80 GiB, 30 % cores: nlp/train-1 40 GiB")
    assert (free.text, free.css) == ("○", "c free f0")


def test_a_few_nodes_have_room_for_amounts_and_every_slice_to_scale() -> None:
    slices = [a_holder("big", "nlp", 40960), a_holder("small", "ads", 8192)]
    node = a_node("n1", a_card(0, "n1", *slices), a_card(1))
    state = a_state(node)
    style = grid_style(state, totals(state), EVERYBODY, NOW)

    held, free = cells(node, style, NOW)
    assert held.amount == "48/80 GiB"
    assert held.slices == ((style.owners.css("nlp"), 50.0), (style.owners.css("ads"), 10.0))
    assert (free.amount, free.slices) == ("0/80 GiB", ())
    html = row(node, style, NOW)
    assert f"<rect class={style.owners.css('ads')} x=50.0 y=0 width=10.0" in html


def test_slices_of_a_card_that_shrank_stay_inside_it() -> None:
    card = a_card(0, "n1", a_holder("a", memory_mib=81920), memory_mib=40960)
    node = a_node("n1", card)
    state = a_state(node)

    [cell] = cells(node, grid_style(state, totals(state), EVERYBODY, NOW), NOW)
    assert [percent for _, percent in cell.slices] == [100.0]


def test_many_nodes_have_cells_that_a_line_describes() -> None:
    state = a_state(*(a_node(f"n{n:03}", a_card(0, f"n{n:03}", a_holder())) for n in range(25)))
    style = grid_style(state, totals(state), EVERYBODY, NOW)

    [cell] = cells(state.nodes["n007"], style, NOW)
    assert (cell.amount, cell.slices) == ("", ())


def test_hostile_names_are_text_in_the_grid() -> None:
    evil = '"><script>alert(1)</script>'
    node = a_node(evil, a_card(0, evil, a_holder(name=evil, namespace=evil)))
    state = a_state(node)
    html = row(node, grid_style(state, totals(state), EVERYBODY, NOW), NOW)

    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_line_is_made_again_when_its_node_changes_and_only_then() -> None:
    card = a_card(0)
    node, state = a_node("n1", card), a_state(a_node("n1", card))
    style = grid_style(state, totals(state), EVERYBODY, NOW)
    rows = RowCache()
    first = rows.row(node, style, NOW)

    same = a_node("n1", heard_s=1, cards=node.cards)
    assert rows.row(same, style, NOW) is first
    assert rows.row(a_node("n1", a_card(0, healthy=False)), style, NOW) != first
    assert "✖" not in first
    assert "?" in rows.row(node, style, NOW + timedelta(minutes=5))


def test_lines_of_a_group_are_those_of_its_nodes_and_stay_escaped() -> None:
    nodes = [a_node("<u>", a_card(0, "<u>")), a_node("n2", a_card(0, "n2"))]
    state = a_state(*nodes)
    style, rows = grid_style(state, totals(state), EVERYBODY, NOW), RowCache()

    shown = rows.rows(nodes, style, NOW)

    assert shown == "".join(str(rows.row(node, style, NOW)) for node in nodes)
    assert "<u>" not in shown
    assert escape(shown) == shown
