"""The waterfall as it is printed: at 80 columns, at 200, and in ASCII."""

from __future__ import annotations

import io
import re

import pytest
from hamicommon.telemetry.waterfall import TraceSpan, waterfall
from hamictl.output.terminal import Presentation, present
from hamictl.view.waterfall import RANK, closing, heading, length, waterfall_table
from rich.console import Console


def a_span(name: str, start_ms: int, duration_ms: int, *, parent: str | None = None) -> TraceSpan:
    return TraceSpan(
        name=name,
        service="hami-scheduler",
        trace_id="t",
        span_id=name,
        parent_id=parent,
        start_us=start_ms * 1000,
        end_us=(start_ms + duration_ms) * 1000,
        outcome="refused" if name == "filter" else "",
    )


SPANS = [
    a_span("admission", 0, 4),
    a_span("filter", 6, 8),
    a_span("place", 7, 2, parent="filter"),
    a_span("bind", 2_460_000, 4),
]


def print_waterfall(width: int, spans: list[TraceSpan] = SPANS, *, ascii_only: bool = False) -> str:
    present(Presentation(ascii_only=ascii_only))
    try:
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(waterfall_table(waterfall(spans), width))
    finally:
        present(Presentation())
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_a_line_a_span_with_the_wait_folded(width: int) -> None:
    lines = print_waterfall(width).splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["admission", "filter", "place", "⋯", "bind"]
    assert max(map(len, lines)) <= width
    assert "⋯ 40 min 59 s waiting ⋯" in lines[4]
    assert lines[2].startswith("filter ✖")
    starts = [line.find("▬") for line in (lines[1], lines[2], lines[3], lines[5])]
    assert starts == sorted(starts)


def test_in_ascii_nothing_is_lost() -> None:
    shown = print_waterfall(80, ascii_only=True)

    assert shown.isascii()
    assert "filter x" in shown
    assert "====" in shown


def test_the_line_above_has_work_and_time() -> None:
    assert heading(waterfall(SPANS), "default/train") == (
        "default/train: 16 ms of work in 41 min 0 s"
    )


BEHIND = [
    a_span("filter", 0, 10),
    a_span("reserve", 5, 45, parent="filter"),
    a_span("bind", 70, 30, parent="filter"),
]


def test_what_went_on_behind_an_answer_is_drawn_thinner() -> None:
    bars = [re.findall("[▬─]+", line)[0] for line in print_waterfall(100, BEHIND).splitlines()[1:]]

    assert set(bars[0]) == set(bars[2]) == {"▬"}
    thick, thin = bars[1].count("▬"), bars[1].count("─")
    assert thick + thin == len(bars[1])
    assert thin > 5 * thick > 0


def test_the_lines_below_have_the_longest_step_what_went_on_and_what_came_later() -> None:
    release = a_span("release", 60_100, 7, parent="filter")

    assert closing(waterfall([*BEHIND, release])) == [
        "longest: reserve 45 ms; 20 ms between steps, waiting for kube-scheduler and kubelet",
        "reserve: 40 ms of it (─) after filter had answered",
        "release: 1 min 0 s later, in 7 ms",
    ]
    assert closing(waterfall(SPANS[:1])) == ["longest: admission 4 ms"]
    assert closing(waterfall([])) == []


def test_a_rank_is_explained_where_one_is_shown() -> None:
    assert closing(waterfall(SPANS[:1], SPANS[:1] * 5))[-1] == RANK


@pytest.mark.parametrize(
    ("microseconds", "shown"),
    [
        (0, "0 s"),
        (310, "310 µs"),
        (4210, "4.21 ms"),
        (1_900_000, "1.9 s"),
        (2_460_000_000, "41 min 0 s"),
        (7_500_000_000, "2 h 5 min"),
    ],
)
def test_a_length_of_time_is_in_the_unit_that_people_use(microseconds: int, shown: str) -> None:
    assert length(microseconds) == shown
