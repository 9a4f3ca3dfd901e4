"""A tenant's text in a span is bounded, in the file and over OTLP alike."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hamicommon.telemetry.exporting import (
    LIMITS,
    MAX_TEXT_LENGTH,
    FileExporter,
    SafeExporter,
)
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, StatusCode, Tracer

HOSTILE = "\x1b[2J" + "x" * 300_000
SHOWN = "\\x1b[2Jxxx"


class Exported:
    """A tracer whose spans go to a file and to what OTLP would send."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = InMemorySpanExporter()
        self._provider = TracerProvider(span_limits=LIMITS)
        for exporter in (FileExporter(path), self._kept):
            self._provider.add_span_processor(SimpleSpanProcessor(SafeExporter(exporter)))
        self.tracer: Tracer = self._provider.get_tracer("t")

    def lines(self) -> list[dict[str, object]]:
        """Read the file's lines after an orderly end."""
        self._provider.shutdown()
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def spans(self) -> tuple[ReadableSpan, ...]:
        """List the spans that an OTLP exporter received."""
        return self._kept.get_finished_spans()


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    return Exported(tmp_path / "t.jsonl")


def test_an_attribute_is_bounded_and_on_one_line_for_every_exporter(exported: Exported) -> None:
    with exported.tracer.start_as_current_span("filter") as span:
        span.set_attribute("hami.message", HOSTILE)
        span.set_attribute("hami.nodes", ["n1", HOSTILE])
        span.set_attribute("hami.count", 3)

    [line], [sent] = exported.lines(), exported.spans()
    assert sent.attributes is not None
    for attributes in (line["attributes"], dict(sent.attributes)):
        assert isinstance(attributes, dict)
        assert attributes["hami.message"].startswith(SHOWN)
        assert len(attributes["hami.message"]) == MAX_TEXT_LENGTH
        assert [len(text) for text in attributes["hami.nodes"]] == [2, MAX_TEXT_LENGTH]
        assert attributes["hami.count"] == 3


def test_an_exception_is_bounded_and_its_traceback_keeps_its_lines(exported: Exported) -> None:
    with (
        pytest.raises(ValueError, match="x"),
        exported.tracer.start_as_current_span("filter"),
    ):
        raise ValueError(HOSTILE)

    [line], [sent] = exported.lines(), exported.spans()
    [event] = sent.events
    assert event.attributes is not None
    assert str(event.attributes["exception.message"]).startswith(SHOWN)
    assert "\n" in str(event.attributes["exception.stacktrace"])
    for value in event.attributes.values():
        assert len(str(value)) <= MAX_TEXT_LENGTH
    assert line["events"][0]["attributes"] == dict(event.attributes)
    assert str(sent.status.description).startswith("ValueError: " + SHOWN)
    assert len(str(sent.status.description)) <= MAX_TEXT_LENGTH


def test_half_a_character_in_an_exception_does_not_end_its_writer(exported: Exported) -> None:
    with (
        pytest.raises(ValueError, match="half"),
        exported.tracer.start_as_current_span("filter"),
    ):
        raise ValueError("half \ud800\x1b[2J")

    [line] = exported.lines()
    attributes = line["events"][0]["attributes"]
    assert attributes["exception.message"] == "half \\ud800\\x1b[2J"
    assert attributes["exception.stacktrace"].endswith("half \\ud800\\x1b[2J")


def wire(span: ReadableSpan) -> object:
    """All that OTLP carries of a span, but its ids and times."""
    [scope] = encode_spans([span]).resource_spans[0].scope_spans
    encoded = scope.spans[0]
    for field in ("trace_id", "span_id", "parent_span_id"):
        encoded.ClearField(field)
    for field in ("start_time_unix_nano", "end_time_unix_nano"):
        encoded.ClearField(field)
    for event in encoded.events:
        event.ClearField("time_unix_nano")
    return encoded, scope.scope


def test_but_for_the_clipped_text_the_copy_is_the_span(exported: Exported) -> None:
    def fill(span: Span, name: str) -> None:
        span.set_attributes({"k8s.pod.name": name, "hami.verdict": "denied"})
        span.add_event("asked", {"whom": "the ledger"})
        span.set_status(StatusCode.ERROR, "no")

    with exported.tracer.start_as_current_span("outer") as outer:
        for name in ("p\n", "p\\n"):
            with exported.tracer.start_as_current_span("inner") as inner:
                fill(inner, name)

    clipped, fitting, parent = exported.spans()
    assert wire(clipped) == wire(fitting)
    assert clipped.parent == fitting.parent == outer.get_span_context()
    assert clipped.resource == parent.resource
    assert [line["name"] for line in exported.lines()] == ["inner", "inner", "outer"]


def test_a_secret_is_masked_for_every_exporter(exported: Exported) -> None:
    address = "postgresql://hami:swordfish@db/hami"
    attributes = {"url.query": "password=swordfish&at=now", "hami.nodes": [address]}
    with (
        pytest.raises(OSError, match="route"),
        exported.tracer.start_as_current_span("filter", attributes=attributes),
    ):
        raise OSError(f"no route to {address}")

    [line], [sent] = exported.lines(), exported.spans()
    assert "swordfish" not in json.dumps(line)
    assert "swordfish" not in sent.to_json()
    assert sent.status.description == "OSError: no route to postgresql://***@db/hami"


def test_a_secret_at_the_sdks_limit_is_masked_whole(exported: Exported) -> None:
    text = "x" * (MAX_TEXT_LENGTH - 20) + " password=swordfish" + "y" * 2 * MAX_TEXT_LENGTH
    with exported.tracer.start_as_current_span("filter") as span:
        span.set_attribute("hami.message", text)

    [sent] = exported.spans()
    assert "fish" not in sent.to_json()


class Collector(SpanExporter):
    """Takes spans, or not."""

    takes = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE


def test_a_collector_that_is_away_costs_one_line_and_its_return_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector = Collector()
    exporter = SafeExporter(collector)

    with caplog.at_level(logging.INFO):
        for takes in (True, False, False, True, True):
            collector.takes = takes
            exporter.export([])

    assert [record.message for record in caplog.records] == [
        "Failed to export spans, dropping them until it works again",
        "Exporting spans again",
    ]


def test_finished_spans_are_one_json_object_per_line(tmp_path: Path) -> None:
    exported = Exported(tmp_path / "traces" / "t.jsonl")
    with (
        exported.tracer.start_as_current_span("outer"),
        exported.tracer.start_as_current_span("inner"),
    ):
        pass

    found: list[Any] = exported.lines()
    assert [span["name"] for span in found] == ["inner", "outer"]
    assert found[0]["parent_id"] == found[1]["context"]["span_id"]


def test_a_file_that_takes_nothing_loses_spans_and_hinders_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = FileExporter(Path("/dev/full"))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(full))

    provider.get_tracer("t").start_span("one").end()
    provider.shutdown()

    assert "No space left" in caplog.records[-1].__dict__["error"]
