"""What the sampler leaves out is kept all the same where it was refused, failed or was slow."""

from __future__ import annotations

import pytest
from hamicommon.telemetry.kept import MOST_SPANS, MOST_TRACES, KeptSpans, RecordAll
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
)
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

SLOW_S = 1.0
SECOND = 1_000_000_000


class Traced:
    """A tracer and what came out."""

    def __init__(self, sampler: Sampler = ALWAYS_OFF) -> None:
        self.exporter = InMemorySpanExporter()
        self.let_go = 0
        provider = TracerProvider(sampler=RecordAll(ParentBased(sampler)))
        provider.add_span_processor(
            KeptSpans(SimpleSpanProcessor(self.exporter), slow_s=SLOW_S, unsampled=self._let_go)
        )
        self.tracer: Tracer = provider.get_tracer("t")

    def _let_go(self, spans: int) -> None:
        self.let_go += spans

    def decision(self, *, seconds: float = 0.001, **attributes: str) -> Span:
        """A `filter` with a `place` inside."""
        root = self.tracer.start_span("filter", start_time=0)
        inner = self.tracer.start_span("place", set_span_in_context(root), start_time=0)
        inner.end(1)
        for key, value in attributes.items():
            root.set_attribute(f"hami.{key}", value)
        root.end(int(seconds * SECOND))
        return root

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]


@pytest.mark.parametrize(
    "attributes",
    [
        {"outcome": "refused"},
        {"outcome": "error"},
        {"verdict": "denied"},
        {"verdict": "failed"},
    ],
)
def test_a_refusal_is_kept_whole_and_as_if_it_were_sampled(attributes: dict[str, str]) -> None:
    traced = Traced()

    traced.decision(**attributes)

    assert traced.names == ["place", "filter"]
    spans = traced.exporter.get_finished_spans()
    assert all(span.get_span_context().trace_flags.sampled for span in spans)
    assert traced.let_go == 0


def test_what_is_slow_or_failed_anywhere_in_it_is_kept() -> None:
    traced = Traced()
    traced.decision(seconds=SLOW_S)
    root = traced.tracer.start_span("bind", start_time=0)
    lock = traced.tracer.start_span("lock", set_span_in_context(root), start_time=0)
    lock.set_status(StatusCode.ERROR)
    lock.end(1)
    root.end(2)

    assert traced.names == ["place", "filter", "lock", "bind"]


def test_what_is_neither_is_let_go_and_counted() -> None:
    traced = Traced()

    traced.decision(outcome="placed")

    assert (traced.names, traced.let_go) == ([], 2)


def test_what_is_sampled_passes_at_once() -> None:
    traced = Traced(ALWAYS_ON)

    traced.decision(outcome="placed")

    assert (traced.names, traced.let_go) == (["place", "filter"], 0)


def test_a_span_that_ends_after_its_kept_trace_follows_it() -> None:
    traced = Traced()
    root = traced.tracer.start_span("filter", start_time=0)
    late = traced.tracer.start_span("note", set_span_in_context(root), start_time=0)
    root.set_attribute("hami.outcome", "refused")
    root.end(1)
    late.end(2)

    assert traced.names == ["filter", "note"]


def test_what_waits_is_bounded() -> None:
    traced = Traced()
    roots = [traced.tracer.start_span("filter", start_time=0) for _ in range(MOST_TRACES + 5)]
    for root in roots:
        for _ in range(2):
            traced.tracer.start_span("place", set_span_in_context(root), start_time=0).end(1)
    assert traced.let_go == 10
    root = traced.tracer.start_span("filter", start_time=0)
    for _ in range(2 * MOST_SPANS):
        traced.tracer.start_span("place", set_span_in_context(root), start_time=0).end(1)
    root.set_attribute("hami.outcome", "refused")
    root.end(1)

    assert len(traced.names) <= MOST_SPANS + 1


def linked_to(*, sampled: bool) -> list[Link]:
    """To an admission."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return [Link(SpanContext(1, 2, is_remote=True, trace_flags=flags))]


@pytest.mark.parametrize("sampled", [True, False])
def test_a_decision_is_sampled_where_the_pods_admission_was(sampled: bool) -> None:
    traced = Traced()

    root = traced.tracer.start_span("filter", links=linked_to(sampled=sampled))
    traced.tracer.start_span("place", set_span_in_context(root)).end()
    root.end()

    assert root.get_span_context().trace_flags.sampled == sampled
    assert traced.names == (["place", "filter"] if sampled else [])
    assert traced.let_go == (0 if sampled else 2)


def test_a_link_samples_nothing_inside_a_trace_that_is_left_out() -> None:
    traced = Traced()

    root = traced.tracer.start_span("filter")
    inside = set_span_in_context(root)
    traced.tracer.start_span("place", inside, links=linked_to(sampled=True)).end()
    root.end()

    assert traced.names == []


def test_a_sampler_that_goes_by_no_parent_goes_by_no_link() -> None:
    result = RecordAll(ALWAYS_OFF).should_sample(None, 1, "filter", links=linked_to(sampled=True))

    assert result.decision is Decision.RECORD_ONLY
