"""What became of the spans of this process, counted: `hami_trace_spans_total{result}`.

`exported` reached the collector; `dropped` did not: it is away, refused them, or more waited than
the queue holds; `unsampled` were left out by the sampler, and nothing made them worth keeping. Only
spans for an OTLP endpoint are counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


logger = logging.getLogger(__name__)


class SpanFate(StrEnum):
    """What becomes of a span."""

    EXPORTED = "exported"
    DROPPED = "dropped"
    UNSAMPLED = "unsampled"


class SpanFates:
    """The counts of a process; a collector for its Prometheus registry."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(SpanFate, 0)
        self._lock = threading.Lock()

    def count(self, fate: SpanFate, spans: int = 1) -> None:
        """So many spans more."""
        with self._lock:
            self._counts[fate] += spans

    @property
    def counts(self) -> Mapping[SpanFate, int]:
        """By result, since the start."""
        with self._lock:
            return dict(self._counts)

    def collect(self) -> Iterator[Metric]:
        """For Prometheus: all results from the start on, so that rates begin at 0."""
        # Here: what has no endpoint for Prometheus need not have its client.
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(
            "hami_trace_spans",
            "Spans for the OTLP endpoint, by result: exported, dropped, unsampled",
            labels=["result"],
        )
        for fate, spans in self.counts.items():
            family.add_metric([fate.value], spans)
        yield family


class CountedExporter(SpanExporter):
    """Counts what an exporter exported, and what it could not; one line when that changes."""

    def __init__(self, exporter: SpanExporter, fates: SpanFates) -> None:
        self._exporter = exporter
        self._fates = fates
        self._failing = False
        self.handled = 0
        """Spans that came this far, exported or not."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Passes them on."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            exported = result is SpanExportResult.SUCCESS
            self._fates.count(SpanFate.EXPORTED if exported else SpanFate.DROPPED, len(spans))
            self.handled += len(spans)
            self._note(failing=not exported)
        return result

    def _note(self, *, failing: bool) -> None:
        if failing and not self._failing:
            logger.warning("spans dropped, the collector does not take them")
        elif self._failing and not failing:
            logger.info("spans exported again")
        self._failing = failing

    def shutdown(self) -> None:
        """Ends it."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether it exported what it holds."""
        return self._exporter.force_flush(timeout_millis)


class BoundedQueue(SpanProcessor):
    """Passes spans to a batch processor while its queue has room, and counts the others.

    The SDK's own queue drops the oldest without a count.
    """

    def __init__(
        self, processor: SpanProcessor, exporter: CountedExporter, fates: SpanFates, *, most: int
    ) -> None:
        """`most`: spans that may wait; fewer than the batch processor's own bound."""
        self._processor = processor
        self._exporter = exporter
        self._fates = fates
        self._most = most
        self._given = 0
        self._lock = threading.Lock()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Passes it on."""
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a span that is sampled; never waits."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        with self._lock:
            full = self._given - self._exporter.handled >= self._most
            self._given += not full
        if full:
            self._fates.count(SpanFate.DROPPED)
        else:
            self._processor.on_end(span)

    def shutdown(self) -> None:
        """Exports what waits."""
        self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether all was exported."""
        return self._processor.force_flush(timeout_millis)
