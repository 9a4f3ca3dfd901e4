"""What the pages show: amounts, owners, cells, lanes, moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.domain.capacity import NodeTallies, NodeTally, totals
from hami_metrics.pages.domain.cluster import Occurrence
from hami_metrics.pages.domain.details import HealthEvent, HeldPeriod, LatestUse, UsePoint
from hami_metrics.pages.views.card import changes, lanes, neighbours, pictured_since
from hami_metrics.pages.views.elements import amounts
from hami_metrics.pages.views.elements.charts import memory_gib, use_chart
from hami_metrics.pages.views.elements.grid import RowCache, cells, row
from hami_metrics.pages.views.elements.moments import page_moment
from hami_metrics.pages.views.elements.owners import owners
from hami_metrics.pages.views.elements.reasons import reason_term
from hami_metrics.pages.views.elements.viewer import EVERYBODY, PageViewer
from hami_metrics.pages.views.node import node_page
from hami_metrics.pages.views.overview import GridFilter, grid_style, overview
from hamicommon.errors import InvalidRequest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amounts.gib(None), "?"),
        (amounts.gib(0), "0 GiB"),
        (amounts.gib(512), "512 MiB"),
        (amounts.gib(39424), "38.5 GiB"),
        (amounts.gib(14336), "14 GiB"),
        (amounts.percent(None), "?"),
        (amounts.count(None), "?"),
        (amounts.count(12345), "12\u2009345"),
        (amounts.span(-3), "0 s"),
        (amounts.span(2460), "41 min"),
        (amounts.span(7800), "2 h 10 min"),
        (amounts.span(41 * 86400), "41 d"),
        (amounts.moment(None), "?"),
    ],
)
def test_amounts_have_their_unit_and_unknown_is_no_zero(shown: str, expected: str) -> None:
    assert shown == expected


def test_an_age_that_nobody_knows_is_unknown() -> None:
    assert amounts.age(None, NOW) == "?"
    assert amounts.share(None, 10) is None
    assert amounts.share(0.001, 10) == 1


@pytest.mark.parametrize(
    "text",
    ["x", "2026-13-01T00:00Z", "1999-01-01T00:00Z", "9" * 60, "2026-11-20T14:06Z", "0001-01"],
)
def test_a_moment_that_is_none_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at: "):
        page_moment(text, NOW)


def test_a_moment_without_a_zone_is_utc_and_links_stay_in_it() -> None:
    moment = page_moment("2026-11-20T14:04", NOW)

    assert moment.at == datetime(2026, 11, 20, 14, 4, tzinfo=UTC)
    assert moment.query == "?at=2026-11-20T14:04:00Z"
    assert page_moment("2026-11-20T15:04+01:00", NOW).at == moment.at
    assert page_moment("", NOW).query == ""


def test_a_moment_is_written_on_pages_as_for_hamictl() -> None:
    for text in ("-2m", "2m", " 2m "):
        assert page_moment(text, NOW).at == NOW - timedelta(minutes=2)
    assert page_moment("yesterday 14:04", NOW).at == datetime(2026, 11, 19, 14, 4, tzinfo=UTC)


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
    assert held.css.split() == ["c", "part", "f5", style.owners.css("nlp")]
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


@pytest.mark.parametrize(
    ("code", "term"),
    [("CardInsufficientMemory", "memory"), ("a vendor's own", "a vendor's own")],
)
def test_a_reason_is_a_term_and_one_that_is_not_known_itself(code: str, term: str) -> None:
    assert reason_term(code) == term


def test_the_picture_of_a_card_begins_where_somebody_held_it() -> None:
    since = NOW - timedelta(days=1)

    assert pictured_since([a_period(100, None)], since, NOW) == NOW - timedelta(minutes=102)
    assert pictured_since([a_period(3000, None)], since, NOW) == since
    assert pictured_since((), since, NOW) == since


def test_hostile_names_are_text_in_the_grid() -> None:
    evil = '"><script>alert(1)</script>'
    node = a_node(evil, a_card(0, evil, a_holder(name=evil, namespace=evil)))
    state = a_state(node)
    html = row(node, grid_style(state, totals(state), EVERYBODY, NOW), NOW)

    assert "<script" not in html
    assert "&lt;script&gt;" in html


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


def test_many_nodes_are_folded_but_never_one_with_a_problem() -> None:
    nodes = [a_node(f"n{n:04}", a_card(0, f"n{n:04}", healthy=n != 130)) for n in range(250)]
    state = a_state(*nodes)

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)
    assert [group.open for group in page.groups] == [True, False, True, False, False]
    only = overview(state, totals(state), EVERYBODY, GridFilter(problems=True), NOW)
    assert (only.shown, only.nodes) == (1, 250)


def test_a_node_is_counted_again_when_it_changes_and_only_then() -> None:
    tallies = NodeTallies()
    node = a_node("n1", a_card(0), a_card(1, "n1", a_holder()), a_card(2, healthy=False))
    first = tallies.of(node, unheard=False)

    assert (first.held, first.free, first.sick) == (1, 1, 1)
    assert tallies.of(a_node("n1", heard_s=1, cards=node.cards), unheard=False) is first
    assert tallies.of(node, unheard=True).sick == 3
    assert tallies.of(a_node("n1", a_card(0)), unheard=False) == NodeTally(0, 1, 0)


def test_what_was_counted_before_makes_no_other_page() -> None:
    tallies = NodeTallies()
    for sick in (3, 7):
        nodes = [a_node(f"n{n}", a_card(0, f"n{n}", healthy=n != sick)) for n in range(120)]
        state = a_state(*nodes)

        kept = overview(state, totals(state), EVERYBODY, GridFilter(), NOW, tallies=tallies)

        assert kept.groups == overview(state, totals(state), EVERYBODY, GridFilter(), NOW).groups


def test_lines_of_a_group_are_those_of_its_nodes_and_stay_escaped() -> None:
    nodes = [a_node("<u>", a_card(0, "<u>")), a_node("n2", a_card(0, "n2"))]
    state = a_state(*nodes)
    style, rows = grid_style(state, totals(state), EVERYBODY, NOW), RowCache()

    shown = rows.rows(nodes, style, NOW)

    assert shown == "".join(str(rows.row(node, style, NOW)) for node in nodes)
    assert "<u>" not in shown
    assert escape(shown) == shown


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
    assert page.labelled
    assert [group.name for group in by_name.groups] == ["n1 to n4"]
    assert GridFilter(group="name").query() == {"group": "name"}


def test_without_racks_nodes_stand_together_by_name_and_there_is_no_choice() -> None:
    state = a_state(a_node("n1", a_card(0, "n1")), a_node("n2", a_card(0, "n2")))

    page = overview(state, totals(state), EVERYBODY, GridFilter(), NOW)

    assert [group.name for group in page.groups] == ["n1 to n2"]
    assert not page.labelled


def test_a_card_that_nobody_measures_is_unknown_on_its_nodes_page() -> None:
    node = a_node("n1", a_card(0, "n1", a_holder()), a_card(1))
    latest = [
        LatestUse(
            at=NOW,
            device_uuid="GPU-n1-0",
            pod_uid="",
            container="",
            memory_mib=4096.0,
            memory_limit_mib=None,
            core_percent=12.0,
        )
    ]
    page = node_page(node, latest=latest, series=(), health=(), drift=(), now=NOW, past=False)

    assert [(line.granted, line.used) for line in page.lines] == [(10, 5), (0, None)]
    assert all(chart.empty for chart in page.charts)


def test_a_card_has_a_time_of_its_state_only_where_that_was_recorded() -> None:
    node = a_node("n1", a_card(0, "n1", healthy=False), a_card(1, "n1", a_holder()))
    health = [
        HealthEvent(
            at=NOW - timedelta(minutes=7),
            node="n1",
            device_uuid=f"GPU-n1-{index}",
            healthy=index == 1,
            reason="",
        )
        for index in (0, 1)
    ]

    page = node_page(node, latest=(), series=(), health=health, drift=(), now=NOW, past=False)

    assert [line.unhealthy_since for line in page.lines] == [NOW - timedelta(minutes=7), None]


def a_period(began_min: float, ended_min: float | None, **changes: Any) -> HeldPeriod:
    given_: dict[str, Any] = {
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
    return HeldPeriod(**given_)


def test_lanes_are_used_again_and_never_overlap() -> None:
    held = [a_period(60, 30), a_period(50, None), a_period(30, 10), a_period(300, 200)]
    drawn = lanes(held, (), EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert [(bar.x, bar.width, bar.y, bar.open) for bar in drawn.bars] == [
        (0.0, 500.0, 0, False),
        (166.7, 833.3, 18, True),
        (500.0, 333.3, 0, False),
    ]


def test_sickness_is_a_band_from_its_beginning_to_its_end() -> None:
    def health(minutes: float, healthy: bool) -> HealthEvent:
        at = NOW - timedelta(minutes=minutes)
        return HealthEvent(
            at=at, node="n1", device_uuid="u", healthy=healthy, reason="" if healthy else "xid 79"
        )

    events = [health(45, False), health(30, True), health(15, False)]
    drawn = lanes((), events, EVERYBODY, since=NOW - timedelta(hours=1), until=NOW)

    assert [(band.x, band.width, band.label) for band in drawn.bands] == [
        (250.0, 250.0, "xid 79"),
        (750.0, 250.0, "xid 79"),
    ]


def test_steps_go_to_the_next_change_and_skip_none() -> None:
    moments = changes([a_period(60, 30), a_period(50, None)], ())
    at: datetime | None = NOW
    walked = []
    while at is not None:
        at, _ = neighbours(moments, at)
        walked.append(at)

    assert walked == [*reversed(moments), None]
    assert neighbours(moments, moments[0]) == (None, moments[1])


def test_gaps_of_a_chart_stay_gaps() -> None:
    def point(minutes: int, mib: float | None) -> UsePoint:
        return UsePoint(
            at=NOW - timedelta(minutes=minutes),
            device_uuid="u",
            memory_mib=mib,
            memory_most_mib=None,
            core_percent=None,
            core_most_percent=None,
        )

    chart = use_chart("m", "GiB", [point(10, 2048), point(5, None)], {"u": "card"}, memory_gib)
    assert [values for _, values in chart.rows] == [[2.0], [None]]
    assert not chart.only
    assert not chart.over_days
    days = use_chart("m", "GiB", [point(24 * 60, 2048), point(5, None)], {"u": "card"}, memory_gib)
    assert days.over_days


def test_a_chart_of_one_point_is_a_sentence() -> None:
    points = [
        UsePoint(
            at=NOW,
            device_uuid=uuid,
            memory_mib=mib,
            memory_most_mib=None,
            core_percent=None,
            core_most_percent=None,
        )
        for uuid, mib in (("u", 3072.0), ("v", None))
    ]

    chart = use_chart("m", "GiB", points, {"u": "card 0", "v": "card 1"}, memory_gib)

    assert chart.only == "card 0 3 GiB, card 1 ?"
    assert not use_chart("m", "GiB", [], {"u": "card 0"}, memory_gib).only
