"""Two moments side by side: cards that are not as they were are outlined, and labelled so."""

from __future__ import annotations

from dataclasses import replace

from hami_metrics.pages.domain.capacity import totals
from hami_metrics.pages.domain.differences import differences
from hami_metrics.pages.views.elements.grid import cells
from hami_metrics.pages.views.elements.viewer import EVERYBODY
from hami_metrics.pages.views.overview import GridFilter, overview

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


def test_a_card_differs_by_its_holders_its_health_and_by_being_gone() -> None:
    held, other = a_card(0, "n1", a_holder("a")), a_card(1, "n1", a_holder("b"))
    sick, gone = a_card(2, "n1"), a_card(3, "n1")
    same = a_card(4, "n1", a_holder("c"))
    then = a_state(a_node("n1", held, other, sick, gone, same), past=True)
    now = a_state(
        a_node(
            "n1",
            a_card(0, "n1"),
            a_card(1, "n1", a_holder("b", memory_mib=1024)),
            replace(sick, healthy=False, health_reason="xid 79"),
            same,
            a_card(5, "n1"),
            # That it is silent is true of now alone.
            heard_s=3600,
        )
    )

    found = differences(then, now)

    assert found.cards == {"GPU-n1-0", "GPU-n1-1", "GPU-n1-2", "GPU-n1-3"}
    assert found.new == 1
    assert differences(then, then).cards == frozenset()


def test_what_differs_is_marked_in_its_cell_and_its_group_is_unfolded() -> None:
    nodes = [a_node(f"n{number:03}", a_card(0, f"n{number:03}")) for number in range(150)]
    state = a_state(*nodes, past=True)

    page = overview(
        state, totals(state), EVERYBODY, GridFilter(), NOW, "", frozenset({"GPU-n149-0"})
    )

    assert [group.open for group in page.groups] == [True, False, True]
    [cell] = cells(nodes[149], page.style, NOW)
    assert " differs" in cell.css
    assert cell.label.endswith("; not so now")
    [other] = cells(nodes[148], page.style, NOW)
    assert "differs" not in other.css
