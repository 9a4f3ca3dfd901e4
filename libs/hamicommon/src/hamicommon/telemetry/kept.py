"""Sampling that always keeps refusals, errors and slow work.

The sampler that OTEL_TRACES_SAMPLER names decides when a trace begins, when nobody knows how it
ends. What it leaves out is recorded all the same (`RecordAll`) and waits until the first span of
this process ends (`KeptSpans`): then the trace of a refusal, an error or something slow is passed
on as if it were sampled, and all others are let go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)
from opentelemetry.util.types import Attributes

MOST_TRACES = 1000
"""Traces that wait for their end, or whose end is remembered for spans that end after it."""
MOST_SPANS = 200
"""Of one trace that waits."""
NS_PER_S = 1_000_000_000
_REFUSALS = {"hami.outcome": ("refused", "error"), "hami.verdict": ("denied", "failed")}


class RecordAll(Sampler):
    """A sampler whose left out spans are recorded, though not sampled.

    A trace that follows from a sampled one is sampled too, where the sampler goes by the parent:
    a pod's admission and its decisions are several traces, and a part of them explains little.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """As the sampler decides; not DROP, but RECORD_ONLY."""
        found = self._sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if found.decision is not Decision.DROP:
            return found
        if isinstance(self._sampler, ParentBased) and _follows_a_sampled(parent_context, links):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, found.attributes, found.trace_state)
        return SamplingResult(Decision.RECORD_ONLY, found.attributes, found.trace_state)

    def get_description(self) -> str:
        """For the SDK's own messages."""
        return f"RecordAll({self._sampler.get_description()})"


def _follows_a_sampled(parent: Context | None, links: Sequence[Link] | None) -> bool:
    """Of a first span; others go by their parent alone."""
    if get_current_span(parent).get_span_context().is_valid:
        return False
    return any(link.context.trace_flags.sampled for link in links or ())


def is_worth_keeping(span: ReadableSpan, *, slow_s: float) -> bool:
    """A refusal, an error, or slower than `slow_s`."""
    if span.status.status_code is StatusCode.ERROR:
        return True
    attributes = span.attributes or {}
    if any(attributes.get(key) in values for key, values in _REFUSALS.items()):
        return True
    return (span.end_time or 0) - (span.start_time or 0) >= slow_s * NS_PER_S


class KeptSpans(SpanProcessor):
    """Passes on what is sampled, and whole traces that turn out to be worth it."""

    def __init__(
        self, following: SpanProcessor, *, slow_s: float, unsampled: Callable[[int], None]
    ) -> None:
        """`unsampled` gets the number of spans that are let go."""
        self._following = following
        self._slow_s = slow_s
        self._unsampled = unsampled
        self._waiting: OrderedDict[int, list[ReadableSpan]] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Passes it on."""
        self._following.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Passes it on, lets it wait, or lets its trace go."""
        context = span.get_span_context()
        if context is None or context.trace_flags.sampled:
            self._following.on_end(span)
            return
        with self._lock:
            kept = self._settled(span, context.trace_id)
        for each in kept:
            self._following.on_end(_sampled(each))

    def _settled(self, span: ReadableSpan, trace_id: int) -> list[ReadableSpan]:
        """What of this trace is passed on now."""
        if trace_id in self._kept:
            return [span]
        spans = self._waiting.setdefault(trace_id, [])
        if len(spans) < MOST_SPANS:
            spans.append(span)
        if not _is_first(span):
            if len(self._waiting) > MOST_TRACES:
                _, oldest = self._waiting.popitem(last=False)
                self._unsampled(len(oldest))
            return []
        del self._waiting[trace_id]
        if not any(is_worth_keeping(each, slow_s=self._slow_s) for each in spans):
            self._unsampled(len(spans))
            return []
        self._kept[trace_id] = None
        if len(self._kept) > MOST_TRACES:
            self._kept.popitem(last=False)
        return spans

    def shutdown(self) -> None:
        """Ends what follows; what waits for its end is let go."""
        self._following.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether what follows exported what it holds."""
        return self._following.force_flush(timeout_millis)


def _is_first(span: ReadableSpan) -> bool:
    """Whether no span of this process is above it."""
    return span.parent is None or span.parent.is_remote


def _sampled(span: ReadableSpan) -> ReadableSpan:
    context = span.get_span_context()
    assert context is not None
    flags = TraceFlags(context.trace_flags | TraceFlags.SAMPLED)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(
            context.trace_id, context.span_id, context.is_remote, flags, context.trace_state
        ),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
