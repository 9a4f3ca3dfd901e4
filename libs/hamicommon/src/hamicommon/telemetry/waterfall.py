"""Arrange a pod's spans as a waterfall, in which long waits are folded. Pure.

In: spans as `hamicommon.telemetry.spans` writes them, one JSON object a line. A pod has several
linked traces: admission, and one for each decision. Waits that are longer than `FOLD` times the
work are no part of the scale: a gap with its length stands for them. A step that began after its
parent span had ended was caused by it and is no part of it: it stands beside it, as what followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import orjson

FOLD = 20
"""Ratio of a wait to all work above which the wait is folded."""
COMPARED_WITHIN = timedelta(hours=1)
FEWEST_COMPARED = 5
"""Minimum number of spans for a percentile."""
MAX_SPANS = 200
RELEASE = "release"
"""Name of the span that ends a grant; not part of the way to the first kernel."""
_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """One span; times are microseconds since 1970."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_us: int
    end_us: int
    failed: bool = False
    pod_uid: str = ""
    pod: str = ""
    """Pod as `namespace/name`."""
    outcome: str = ""
    linked: tuple[str, ...] = ()
    """Trace ids of the span's links."""

    @property
    def duration_us(self) -> int:
        """Duration of the span."""
        return max(0, self.end_us - self.start_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallSpan:
    """Line of the waterfall."""

    span: TraceSpan
    depth: int
    offset_us: int
    """Start on the folded scale."""
    percentile: int | None
    """Percentile of its duration among spans of its name in the previous hour; None: too few."""
    behind_us: int = 0
    """Time for which it continued after its parent had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedWait:
    """A folded wait, before the line that follows."""

    duration_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Waterfall of a pod: its way to the first kernel, and separately the end of its grant."""

    rows: Sequence[WaterfallSpan | FoldedWait]
    scale_us: int
    """Length of the scale, at least 1."""
    work_us: int
    """Time in which any step ran; parallel steps count once."""
    total_us: int
    """Time from the first span's start to the last one's end, waits included."""
    longest: TraceSpan | None = None
    """Longest step on which other steps waited, or that continued after an answer."""
    releases: Sequence[WaterfallSpan] = ()
    """Spans of the grant's end, which are not part of scale, work and total."""
    ended_us: int = 0
    """End of the last row."""
    earlier_decisions: int = 0
    """Number of the pod's decisions before the one that is shown."""
    left_out: int = 0
    """Number of spans beyond `MAX_SPANS` that are left out, the shortest ones."""

    @property
    def between_us(self) -> int:
        """Return the time in which no step of our services ran."""
        return self.total_us - self.work_us


def read_spans(lines: Iterable[bytes | str]) -> list[TraceSpan]:
    """Parse spans from lines; unreadable lines (of a file being written) are skipped."""
    return [span for line in lines if (span := _span(line)) is not None]


def _span(line: bytes | str) -> TraceSpan | None:
    try:
        found = orjson.loads(line)
        context, attributes = found["context"], found.get("attributes") or {}
        return TraceSpan(
            name=str(found["name"]),
            service=str(found.get("service") or ""),
            trace_id=str(context["trace_id"]),
            span_id=str(context["span_id"]),
            parent_id=None if found.get("parent_id") is None else str(found["parent_id"]),
            start_us=_moment(found["start_time"]),
            end_us=_moment(found["end_time"]),
            failed=found.get("status") == "ERROR",
            pod_uid=str(attributes.get("k8s.pod.uid") or ""),
            pod=f"{attributes.get('k8s.namespace.name', '')}/{attributes.get('k8s.pod.name', '')}",
            outcome=str(attributes.get("hami.outcome") or attributes.get("hami.verdict") or ""),
            linked=tuple(str(link["context"]["trace_id"]) for link in found.get("links") or ()),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _moment(text: str) -> int:
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _US


def spans_of_pod(spans: Sequence[TraceSpan], pod_uid: str) -> list[TraceSpan]:
    """Return all spans of the traces that name the pod, and of traces that link to these."""
    own = {span.trace_id for span in spans if span.pod_uid == pod_uid}
    linked = {trace for span in spans if span.trace_id in own for trace in span.linked}
    return [span for span in spans if span.trace_id in own | linked]


def latest_uid(spans: Sequence[TraceSpan], pod: str) -> str | None:
    """Return the uid of the newest pod of this name (`namespace/name`) in the spans."""
    named = [span for span in spans if span.pod == pod and span.pod_uid]
    return max(named, key=lambda span: span.start_us).pod_uid if named else None


def waterfall(pod_spans: Sequence[TraceSpan], every: Sequence[TraceSpan] = ()) -> Waterfall:
    """Arrange one pod's spans; `every` are the spans with which percentiles are computed."""
    shown, earlier = _last_decision(pod_spans)
    left_out = max(0, len(shown) - MAX_SPANS)
    if left_out:
        longest = sorted(shown, key=lambda span: -span.duration_us)[:MAX_SPANS]
        kept = {span.span_id for span in longest}
        shown = [span for span in shown if span.span_id in kept]
    lengths = _lengths(every, before_us=max((span.end_us for span in shown), default=0))
    releases = [span for span in shown if span.name == RELEASE]
    steps = [span for span in shown if span.name != RELEASE] or releases
    busy = _merge_spans(sorted(steps, key=lambda span: span.start_us))
    work_us = sum(end - start for start, end in busy)
    folded = _folded_waits(busy, work_us)
    drawn = [
        WaterfallSpan(
            span=span,
            depth=depth,
            offset_us=_offset(span.start_us, busy, folded),
            percentile=_percentile(span, lengths),
            behind_us=behind_us,
        )
        for span, depth, behind_us in _in_order(steps)
    ]
    waited_for = [row.span for row in drawn if row.depth == 0 or row.behind_us]
    total_us = busy[-1][1] - busy[0][0] if busy else 0
    return Waterfall(
        rows=list(_with_waits(drawn, folded)),
        scale_us=max(1, total_us - sum(folded.values())),
        work_us=work_us,
        total_us=total_us,
        longest=max(waited_for, key=lambda span: span.duration_us, default=None),
        releases=[
            WaterfallSpan(
                span=span, depth=0, offset_us=0, percentile=_percentile(span, lengths), behind_us=0
            )
            for span in sorted(releases, key=lambda span: span.start_us)
            if steps is not releases
        ],
        ended_us=busy[-1][1] if busy else 0,
        earlier_decisions=earlier,
        left_out=left_out,
    )


def _with_waits(
    drawn: Sequence[WaterfallSpan], folded: Mapping[int, int]
) -> Iterator[WaterfallSpan | FoldedWait]:
    """Insert each folded wait before the first step that follows it."""
    unshown = dict(folded)
    for row in drawn:
        if row.span.start_us in unshown:
            yield FoldedWait(duration_us=unshown.pop(row.span.start_us))
        yield row


def _last_decision(spans: Sequence[TraceSpan]) -> tuple[list[TraceSpan], int]:
    """Drop the decisions before the last one, maybe thousands; return the rest and their number."""
    decisions = sorted(
        (span for span in spans if span.name == "filter" and span.parent_id is None),
        key=lambda span: span.start_us,
    )
    before = {span.trace_id for span in decisions[:-1]}
    if decisions:
        before.discard(decisions[-1].trace_id)
    return [span for span in spans if span.trace_id not in before], len(before)


def _in_order(spans: Sequence[TraceSpan]) -> Iterator[tuple[TraceSpan, int, int]]:
    """Yield each span with its depth and the time it ran after its parent's end; parents first."""
    known = {span.span_id: span for span in spans}
    roots, children = list[TraceSpan](), defaultdict[str, list[TraceSpan]](list)
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us)):
        above = _part_of(span, known)
        (roots if above is None else children[above.span_id]).append(span)
    for root in roots:
        for span, depth in _tree(root, children):
            above = _part_of(span, known) if depth else None
            yield span, depth, 0 if above is None else max(0, span.end_us - above.end_us)


def _part_of(span: TraceSpan, known: Mapping[str, TraceSpan]) -> TraceSpan | None:
    """Return the nearest ancestor that had not ended when the span began; None: there is none."""
    parent = above = known.get(span.parent_id or "")
    seen = set[str]()
    while above is not None and above.end_us <= span.start_us:
        if above.span_id in seen:
            return parent
        seen.add(above.span_id)
        above = known.get(above.parent_id or "")
    return above


def _tree(
    root: TraceSpan, children: Mapping[str, list[TraceSpan]]
) -> Iterator[tuple[TraceSpan, int]]:
    """Walk depth first; a span in a cycle of parents comes once."""
    waiting, seen = [(root, 0)], set[str]()
    while waiting:
        span, at = waiting.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        yield span, at
        waiting += [(each, at + 1) for each in reversed(children.get(span.span_id, ()))]


def _merge_spans(spans: Sequence[TraceSpan]) -> list[tuple[int, int]]:
    """Return (start, end) of the times in which anything ran, in order."""
    busy: list[tuple[int, int]] = []
    for span in spans:
        if busy and span.start_us <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], span.end_us))
        else:
            busy.append((span.start_us, max(span.start_us, span.end_us)))
    return busy


def _folded_waits(busy: Sequence[tuple[int, int]], work_us: int) -> dict[int, int]:
    """Return the folded waits: start of the next step -> length of the wait."""
    return {
        after: after - before
        for (_, before), (after, _) in pairwise(busy)
        if after - before > FOLD * max(work_us, 1)
    }


def _offset(at_us: int, busy: Sequence[tuple[int, int]], folded: Mapping[int, int]) -> int:
    """Place a moment on the scale."""
    begin = busy[0][0] if busy else at_us
    waits = sum(length for after, length in folded.items() if after <= at_us)
    return max(0, at_us - begin - waits)


def _lengths(spans: Sequence[TraceSpan], *, before_us: int) -> Mapping[tuple[str, str], list[int]]:
    since_us = before_us - COMPARED_WITHIN // _US
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for span in spans:
        if since_us <= span.end_us <= before_us:
            found[span.service, span.name].append(span.duration_us)
    return found


def _percentile(span: TraceSpan, lengths: Mapping[tuple[str, str], list[int]]) -> int | None:
    compared = lengths.get((span.service, span.name), [])
    if len(compared) < FEWEST_COMPARED:
        return None
    return round(100 * sum(each <= span.duration_us for each in compared) / len(compared))
