"""A pod's spans as lines: linked traces, folded waits, percentiles; whatever the files hold."""

from __future__ import annotations

import json

import pytest
from hamicommon.telemetry.waterfall import (
    FEWEST_COMPARED,
    MAX_SPANS,
    FoldedWait,
    TraceSpan,
    WaterfallSpan,
    latest_uid,
    read_spans,
    spans_of_pod,
    waterfall,
)
from hypothesis import given
from hypothesis import strategies as st

MS = 1000
MINUTE = 60_000 * MS


def a_span(
    name: str,
    start_ms: float,
    duration_ms: float = 1,
    *,
    trace: str = "t1",
    parent: str | None = None,
    pod_uid: str = "",
    pod: str = "default/train",
    linked: tuple[str, ...] = (),
) -> TraceSpan:
    return TraceSpan(
        name=name,
        service="s",
        trace_id=trace,
        span_id=f"{name}@{start_ms}",
        parent_id=parent,
        start_us=round(start_ms * MS),
        end_us=round((start_ms + duration_ms) * MS),
        pod_uid=pod_uid,
        pod=pod,
        linked=linked,
    )


def names(rows: object) -> list[str]:
    assert isinstance(rows, list)
    return [
        "⋯" if isinstance(row, FoldedWait) else f"{'  ' * row.depth}{row.span.name}" for row in rows
    ]


def test_admission_is_found_by_the_decisions_link_and_other_pods_are_not() -> None:
    spans = [
        a_span("admission", 0, trace="a"),
        a_span("filter", 5, trace="f", pod_uid="u1", linked=("a",)),
        a_span("admission", 0, trace="b"),
        a_span("filter", 6, trace="g", pod_uid="u2", linked=("b",)),
    ]

    assert [span.trace_id for span in spans_of_pod(spans, "u1")] == ["a", "f"]
    assert latest_uid(spans, "default/train") == "u2"
    assert latest_uid(spans, "default/other") is None


def test_children_are_below_their_parents_and_a_long_wait_is_folded() -> None:
    bind = a_span("bind", 10, 9, trace="f")
    spans = [
        a_span("admission", 0, 3, trace="a"),
        a_span("lock", 11, 2, trace="f", parent=bind.span_id),
        bind,
        a_span("first-kernel", 3 * 60_000, 4, trace="f", parent=bind.span_id),
    ]

    drawn = waterfall(spans)

    assert names(list(drawn.rows)) == ["admission", "bind", "  lock", "⋯", "first-kernel"]
    assert drawn.work_us == (3 + 9 + 4) * MS
    assert drawn.total_us == 3 * MINUTE + 4 * MS
    [wait] = [row for row in drawn.rows if isinstance(row, FoldedWait)]
    assert wait.duration_us == 3 * MINUTE - 19 * MS
    last = drawn.rows[-1]
    assert isinstance(last, WaterfallSpan)
    assert last.offset_us == 19 * MS
    assert drawn.scale_us == 23 * MS


def test_a_step_that_began_after_its_parent_ended_stands_beside_it() -> None:
    decision = a_span("filter", 0, 2)
    bind = a_span("bind", 40, 10, parent=decision.span_id)
    late = a_span("mirror", 55, 1, parent=bind.span_id)
    spans = [
        decision,
        a_span("place", 0.5, 1, parent=decision.span_id),
        a_span("reserve", 1.5, 20, parent=decision.span_id),
        bind,
        a_span("lock", 41, 1, parent=bind.span_id),
        late,
        a_span("allocate", 60, 3, parent=decision.span_id),
    ]

    drawn = waterfall(spans)

    assert names(list(drawn.rows)) == [
        *("filter", "  place", "  reserve"),
        *("bind", "  lock", "mirror", "allocate"),
    ]
    behind = {row.span.name: row.behind_us for row in drawn.rows if isinstance(row, WaterfallSpan)}
    assert {name: us for name, us in behind.items() if us} == {"reserve": 19_500}
    assert drawn.longest is not None
    assert drawn.longest.name == "reserve"
    assert drawn.between_us == drawn.total_us - drawn.work_us == (63 - 21.5 - 10 - 1 - 3) * MS


def test_the_end_of_the_grant_is_apart_from_the_way_to_the_first_kernel() -> None:
    way = [
        a_span("filter", 0, 2),
        a_span("first-kernel", 10, 4, parent="filter@0"),
    ]
    release = a_span("release", 5 * 60_000, 7, parent="filter@0")

    drawn = waterfall([*way, release])

    assert names(list(drawn.rows)) == ["filter", "first-kernel"]
    assert [row.span for row in drawn.releases] == [release]
    alone = waterfall(way)
    assert (drawn.work_us, drawn.total_us, drawn.scale_us) == (6 * MS, 14 * MS, 14 * MS)
    assert (alone.work_us, alone.total_us, alone.ended_us) == (6 * MS, 14 * MS, drawn.ended_us)


def test_a_release_alone_is_drawn() -> None:
    drawn = waterfall([a_span("release", 5, 7)])

    assert names(list(drawn.rows)) == ["release"]
    assert not drawn.releases


def test_a_wait_that_is_not_much_longer_than_the_work_is_drawn_to_scale() -> None:
    drawn = waterfall([a_span("filter", 0, 10), a_span("bind", 100, 10, trace="x")])

    assert names(list(drawn.rows)) == ["filter", "bind"]
    assert drawn.scale_us == 110 * MS


def test_of_many_decisions_the_last_is_drawn_and_the_others_are_counted() -> None:
    spans = [a_span("admission", 0, trace="a")]
    spans += [a_span("filter", 10 * number, trace=f"f{number}") for number in range(12)]

    drawn = waterfall(spans)

    assert drawn.earlier_decisions == 11
    assert names(list(drawn.rows)).count("filter") == 1
    last = drawn.rows[-1]
    assert isinstance(last, WaterfallSpan)
    assert last.span.trace_id == "f11"


def test_a_percentile_is_of_the_hour_before_and_of_enough_spans() -> None:
    others = [a_span("filter", -1000 * number, number, trace=f"o{number}") for number in range(9)]
    old = [a_span("filter", -2 * 3600_000, 500, trace="old")] * 50
    own = a_span("filter", 0, 4)

    def percentile(every: list[TraceSpan]) -> int | None:
        row = waterfall([own], every).rows[0]
        assert isinstance(row, WaterfallSpan)
        return row.percentile

    assert percentile([*others, *old, own]) == 60
    assert percentile(others[: FEWEST_COMPARED - 1]) is None


def test_the_shortest_spans_are_left_out_where_there_are_too_many() -> None:
    spans = [a_span("x", number, number % 7 + 1) for number in range(MAX_SPANS + 30)]

    drawn = waterfall(spans)

    assert (len(drawn.rows), drawn.left_out) == (MAX_SPANS, 30)


def test_lines_that_are_no_span_are_left_out() -> None:
    good = {
        "name": "filter",
        "service": "hami-scheduler",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "parent_id": None,
        "start_time": "2026-11-20T14:05:00.000001+00:00",
        "end_time": "2026-11-20T14:05:00.004001+00:00",
        "status": "ERROR",
        "attributes": {"k8s.pod.uid": "u", "k8s.namespace.name": "n", "k8s.pod.name": "p"},
        "links": [{"context": {"trace_id": "0x9", "span_id": "0x8"}}],
    }
    line = json.dumps(good)
    bad = [line[:50], "", "null", "[]", json.dumps(good | {"context": {}}), "\x00", "7"]
    bad += [json.dumps(good | {"start_time": None}), json.dumps(good | {"links": [1]})]

    [span] = read_spans([*bad, line])

    assert (span.pod, span.pod_uid, span.failed, span.linked) == ("n/p", "u", True, ("0x9",))
    assert span.duration_us == 4 * MS


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-(10**9), 10**9),
            st.integers(-10, 10**6),
            st.sampled_from(["a@0.0", "b@1.0", None]),
            st.sampled_from("xy"),
        ),
        max_size=20,
    )
)
def test_whatever_the_spans_are_each_root_has_a_line_within_the_scale(
    found: list[tuple[str, int, int, str | None, str]],
) -> None:
    spans = [
        a_span(name, start, lasted, parent=parent, trace=trace)
        for name, start, lasted, parent, trace in found
    ]

    drawn = waterfall(spans, spans)

    for row in drawn.rows:
        if isinstance(row, WaterfallSpan):
            assert 0 <= row.offset_us <= drawn.scale_us
    assert drawn.scale_us >= 1


def test_no_spans_are_no_lines() -> None:
    drawn = waterfall([])

    assert (list(drawn.rows), drawn.total_us, drawn.scale_us) == ([], 0, 1)


@pytest.mark.parametrize("cycle", [1, 2])
def test_spans_that_are_each_others_parents_end(cycle: int) -> None:
    spans = [
        a_span(f"s{number}", number, parent=f"s{(number + 1) % cycle}@{(number + 1) % cycle}")
        for number in range(cycle)
    ]

    assert list(waterfall(spans).rows) == []
