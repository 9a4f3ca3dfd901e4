"""A collector that is away costs spans, which are counted, and no time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hamicommon.telemetry.fates import BoundedQueue, CountedExporter, SpanFate, SpanFates
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, generate_latest

from tests.waiting import PATIENCE_S

MOST = 10


class Collector(SpanExporter):
    """One that answers, refuses, or hangs until it is let go."""

    def __init__(self, answer: SpanExportResult | Exception) -> None:
        self.answer = answer
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.hangs.set()
        assert self.let_go.wait(PATIENCE_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def shutdown(self) -> None:
        """Nothing to end."""


def provider_of(collector: Collector, fates: SpanFates) -> TracerProvider:
    counted = CountedExporter(collector, fates)
    batches = BatchSpanProcessor(counted, max_queue_size=4 * MOST, max_export_batch_size=1)
    provider = TracerProvider()
    provider.add_span_processor(BoundedQueue(batches, counted, fates, most=MOST))
    return provider


def test_what_does_not_fit_while_the_collector_hangs_is_dropped_at_once() -> None:
    fates, collector = SpanFates(), Collector(SpanExportResult.SUCCESS)
    provider = provider_of(collector, fates)
    tracer = provider.get_tracer("t")

    for _ in range(MOST + 7):
        tracer.start_span("s").end()
    assert collector.hangs.wait(PATIENCE_S)
    assert fates.counts[SpanFate.DROPPED] == 7

    collector.let_go.set()
    provider.shutdown()
    assert fates.counts == {
        SpanFate.EXPORTED: MOST,
        SpanFate.DROPPED: 7,
        SpanFate.UNSAMPLED: 0,
    }


def test_what_the_collector_refuses_is_counted_as_dropped() -> None:
    fates, collector = SpanFates(), Collector(SpanExportResult.FAILURE)
    collector.let_go.set()
    provider = provider_of(collector, fates)

    provider.get_tracer("t").start_span("s").end()
    provider.shutdown()

    assert fates.counts[SpanFate.DROPPED] == 1


def test_an_outage_of_the_collector_is_one_line_and_its_end_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    collector = Collector(SpanExportResult.FAILURE)
    collector.let_go.set()
    counted = CountedExporter(collector, SpanFates())
    ended = TracerProvider().get_tracer("t").start_span("s")
    ended.end()
    assert isinstance(ended, ReadableSpan)

    for _ in range(3):
        counted.export([ended])
    collector.answer = SpanExportResult.SUCCESS
    for _ in range(3):
        counted.export([ended])

    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "spans dropped, the collector does not take them"),
        ("INFO", "spans exported again"),
    ]


def test_prometheus_gets_all_results_from_the_start_on() -> None:
    fates, registry = SpanFates(), CollectorRegistry()
    registry.register(fates)
    fates.count(SpanFate.DROPPED, 3)

    text = generate_latest(registry).decode()

    assert 'hami_trace_spans_total{result="dropped"} 3.0' in text
    assert 'hami_trace_spans_total{result="exported"} 0.0' in text
    assert 'hami_trace_spans_total{result="unsampled"} 0.0' in text


class Endpoint:
    """A real OTLP endpoint that can be stopped, and started again on its port."""

    def __init__(self) -> None:
        self.port, self.received = 0, 0

    @contextmanager
    def up(self) -> Iterator[None]:
        """Answers while the block runs."""
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.received += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        with ThreadingHTTPServer(("127.0.0.1", self.port), Answer) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


@pytest.mark.filterwarnings("ignore:Transient error:UserWarning")
def test_a_stopped_endpoint_costs_spans_that_are_counted_and_no_time() -> None:
    fates, endpoint = SpanFates(), Endpoint()
    with endpoint.up():
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{endpoint.port}/v1/traces", timeout=1)
        counted = CountedExporter(exporter, fates)
        batches = BatchSpanProcessor(counted, schedule_delay_millis=10)
        provider = TracerProvider()
        provider.add_span_processor(BoundedQueue(batches, counted, fates, most=MOST))
        tracer = provider.get_tracer("t")
        tracer.start_span("s").end()
        assert provider.force_flush()
        assert (fates.counts[SpanFate.EXPORTED], endpoint.received) == (1, 1)

    began = time.thread_time()
    for _ in range(MOST):
        tracer.start_span("s").end()
    assert time.thread_time() - began < 1  # of this thread: nothing was sent from here
    provider.force_flush()
    provider.shutdown()

    assert fates.counts[SpanFate.DROPPED] == MOST
    assert fates.counts[SpanFate.EXPORTED] == 1
