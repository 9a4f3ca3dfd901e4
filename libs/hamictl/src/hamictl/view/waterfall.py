"""Draw the waterfall of a pod's spans in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hamicommon.telemetry.waterfall import FoldedWait, Waterfall, WaterfallSpan
from rich.table import Table
from rich.text import Text

from hamictl.output.terminal import plain

MIN_BAR, MAX_BAR = 12, 80
_GAP = 2
PLACED = frozenset({"bind", "allocate", "prepare", "first-kernel"})
"""Steps after which the node's kubelet continues."""
RANK = "RANK p83: 83 % of such steps took no longer in the hour before"


def heading(drawn: Waterfall, pod: str) -> str:
    """Return the line above the waterfall."""
    earlier = f", decision {drawn.earlier_decisions + 1} (the latest)" * bool(
        drawn.earlier_decisions
    )
    return (
        f"{pod}: {length(drawn.work_us)} of work in {length(drawn.total_us)}{earlier}"
        + f", {drawn.left_out} short spans left out" * bool(drawn.left_out)
    )


def closing(drawn: Waterfall) -> list[str]:
    """Return the lines below the waterfall, which summarize it and explain RANK."""
    lines = [*_longest(drawn), *_behind(drawn), *_later(drawn)]
    if any(isinstance(row, WaterfallSpan) and row.percentile is not None for row in drawn.rows):
        lines.append(RANK)
    return [plain(line) for line in lines]


def _longest(drawn: Waterfall) -> Iterator[str]:
    # States of the ledger follow on one another: the longest is what the pod did all its life.
    if drawn.longest is None or drawn.longest.service == "ledger":
        return
    known = {row.span.name for row in drawn.rows if isinstance(row, WaterfallSpan)}
    for_whom = "kube-scheduler and kubelet" if known & PLACED else "kube-scheduler"
    earlier = " (earlier decisions are in it)" * bool(drawn.earlier_decisions)
    between = f"; {length(drawn.between_us)} between steps, waiting for {for_whom}{earlier}"
    yield (
        f"longest: {drawn.longest.name} {length(drawn.longest.duration_us)}"
        + between * (drawn.between_us > 0)
    )


def _behind(drawn: Waterfall) -> Iterator[str]:
    above: dict[int, str] = {}
    for row in drawn.rows:
        if isinstance(row, WaterfallSpan):
            above[row.depth] = row.span.name
            if row.behind_us:
                yield (
                    f"{row.span.name}: {length(row.behind_us)} of it (─) after "
                    f"{above[row.depth - 1]} had answered"
                )


def _later(drawn: Waterfall) -> Iterator[str]:
    for row in drawn.releases:
        after = length(max(0, row.span.start_us - drawn.ended_us))
        yield f"{row.span.name}: {after} later, in {length(row.span.duration_us)}"


def waterfall_table(drawn: Waterfall, width: int) -> Table:
    """Return a table with a line per span: name, bar, duration, and rank among others."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("SPAN", "", "DURATION", "RANK", "SERVICE"):
        made.add_column(
            Text(header, style="bold"),
            overflow="fold",
            justify="right" if header in ("DURATION", "RANK") else "left",
            no_wrap=header != "SERVICE",
        )
    bar = min(MAX_BAR, max(MIN_BAR, width - _fixed_columns(drawn)))
    for row in drawn.rows:
        made.add_row(*(Text(plain(cell)) for cell in _cells(row, drawn, bar)))
    return made


def _fixed_columns(drawn: Waterfall) -> int:
    """Return the width of all columns except the bars."""
    cells = [tuple(_cells(row, drawn, MIN_BAR)) for row in drawn.rows]
    widest = (max((len(each[at]) for each in cells), default=0) for at in (0, 2, 3, 4))
    headers = (len("SPAN"), len("DURATION"), len("RANK"), len("SERVICE"))
    return sum(max(pair) + _GAP for pair in zip(widest, headers, strict=True)) + _GAP


def _cells(row: WaterfallSpan | FoldedWait, drawn: Waterfall, bar: int) -> Iterator[str]:
    if isinstance(row, FoldedWait):
        yield "⋯"
        yield f"⋯ {length(row.duration_us)} waiting ⋯"
        yield from ("", "", "")
        return
    span = row.span
    mark = " ✖" if span.failed or span.outcome in ("refused", "error", "denied") else ""
    yield f"{'  ' * row.depth}{span.name}{mark}"
    yield _bar(row, drawn.scale_us, bar)
    yield length(span.duration_us)
    yield "" if row.percentile is None else f"p{row.percentile}"
    yield span.service


def _bar(row: WaterfallSpan, scale_us: int, width: int) -> str:
    start = min(width - 1, row.offset_us * width // scale_us)
    long = max(1, min(width - start, round(row.span.duration_us * width / scale_us)))
    # What continued behind an answer is drawn thinner; one cell is left to what came before it.
    behind = min(long - 1, round(row.behind_us * width / scale_us))
    return " " * start + ("▬" * (long - behind) if long > 1 else "▪") + "─" * behind


def length(microseconds: int) -> str:
    """Format a duration: 310 µs, 4.2 ms, 1.9 s, 41 min 3 s, 2 h 5 min."""
    if 0 < microseconds < 1000:
        return f"{microseconds} µs"
    if not microseconds:
        return "0 s"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    seconds = microseconds / 1_000_000
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"
