"""Spans reach the file and OTLP; one that begins a trace is like the SDK's own."""

import contextlib
import json
from pathlib import Path

import pytest
from hamicommon import telemetry
from hamicommon.telemetry import spans
from hamicommon.telemetry.spans import FileSpans, begin_trace
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, StatusCode

from tests.waiting import wait


def test_finished_spans_are_one_json_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        pass
    provider.shutdown()

    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert [span["name"] for span in found] == ["inner", "outer"]
    assert found[0]["parent_id"] == found[1]["context"]["span_id"]


def test_a_leaf_span_belongs_to_the_span_around_it_and_keeps_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("outer"):
        with telemetry.leaf_span(tracer, "quiet"):
            pass
        with contextlib.suppress(ValueError), telemetry.leaf_span(tracer, "loud"):
            raise ValueError("no")
    provider.shutdown()

    quiet, loud, outer = [json.loads(text) for text in path.read_text().splitlines()]
    assert {quiet["parent_id"], loud["parent_id"]} == {outer["context"]["span_id"]}
    assert (quiet["status"], loud["status"], outer["status"]) == ("UNSET", "ERROR", "UNSET")
    assert loud["events"][0]["attributes"]["exception.message"] == "no"


def exported(
    sampler: sampling.Sampler | None = None,
) -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, kept = TracerProvider(sampler=sampler), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return provider, kept


def test_a_trace_begins_whatever_is_current(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("outer"):
        begun = begin_trace(tracer, "root")
        begun.set_attributes({"pod": "p"})
        begun.end()
    provider.shutdown()

    root, outer = [json.loads(text) for text in path.read_text().splitlines()]
    assert (root["parent_id"], root["status"], root["attributes"]) == (None, "UNSET", {"pod": "p"})
    assert root["context"]["trace_id"] != outer["context"]["trace_id"]
    assert root["start_time"] <= root["end_time"]


def test_other_spans_may_stand_in_it() -> None:
    provider, kept = exported()
    tracer = provider.get_tracer("t")
    begun = begin_trace(tracer, "root")
    with trace.use_span(begun), tracer.start_as_current_span("inner"):
        pass
    begun.end()
    provider.shutdown()

    inner, root = kept.get_finished_spans()
    assert inner.parent == root.context


def told(span: ReadableSpan) -> object:
    """All that an exporter reads, but ids and times."""
    [scope] = encode_spans([span]).resource_spans[0].scope_spans
    wire = scope.spans[0]
    for field in ("trace_id", "span_id", "start_time_unix_nano", "end_time_unix_nano"):
        wire.ClearField(field)
    for event in wire.events:
        event.ClearField("time_unix_nano")
        stack = [each for each in event.attributes if each.key == "exception.stacktrace"]
        for each in stack:
            event.attributes.remove(each)
    return wire


def test_over_otlp_it_is_what_the_sdks_own_span_would_be() -> None:
    provider, kept = exported()
    tracer = provider.get_tracer("t")
    links = telemetry.link_to("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

    def fill(span: Span) -> None:
        span.set_attributes({"pod": "p", "verdict": "denied"})
        span.set_attribute("reason", "r")
        span.update_name("admitting")
        span.add_event("asked", {"whom": "the ledger"})
        error = ValueError("no")
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, "ValueError: no")
        span.end()

    fill(begin_trace(tracer, "admission", links))
    fill(tracer.start_span("admission", links=links))
    provider.shutdown()

    ours, theirs = kept.get_finished_spans()
    assert told(ours) == told(theirs)
    assert ours.resource == theirs.resource


@pytest.mark.parametrize(
    ("sampler", "count"),
    [(sampling.ALWAYS_OFF, 0), (sampling.TraceIdRatioBased(0.0), 0), (sampling.ALWAYS_ON, 1)],
    ids=["off", "none-of-all", "on"],
)
def test_a_sampler_is_heeded(sampler: sampling.Sampler, count: int) -> None:
    provider, kept = exported(sampler)
    begun = begin_trace(provider.get_tracer("t"), "root")
    begun.end()
    provider.shutdown()

    assert len(kept.get_finished_spans()) == count
    assert bool(begun.get_span_context().trace_flags.sampled) is bool(count)


def test_without_tracing_nothing_is_stamped() -> None:
    begun = begin_trace(trace.NoOpTracer(), "root")

    assert telemetry.traceparent_of(begun) == ""


def test_a_file_gets_the_spans_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "WRITE_EVERY_S", 0.0)
    path = tmp_path / "t.jsonl"
    provider, written = TracerProvider(), FileSpans(path)
    provider.add_span_processor(written)
    begin_trace(provider.get_tracer("t"), "one").end()

    wait(path.read_bytes, "the span")
    provider.shutdown()
    assert json.loads(path.read_text())["name"] == "one"


class RecordOnly(sampling.Sampler):
    """Records every span and samples none."""

    def should_sample(self, *_about: object, **_more: object) -> sampling.SamplingResult:
        return sampling.SamplingResult(sampling.Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "record only"


def test_spans_that_are_not_sampled_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider(sampler=RecordOnly())
    provider.add_span_processor(FileSpans(path))
    begin_trace(provider.get_tracer("t"), "one").end()
    provider.shutdown()

    assert path.read_bytes() == b""


def test_spans_beyond_the_bound_are_lost_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans, "MOST_WAITING", 2)
    monkeypatch.setattr(spans, "WRITE_EVERY_S", 3600.0)
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    for number in range(5):
        begin_trace(provider.get_tracer("t"), str(number)).end()
    provider.shutdown()

    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["0", "1"]
    [record] = [record for record in caplog.records if record.getMessage() == "spans lost"]
    assert record.__dict__["spans"] == 3


def test_a_file_that_takes_nothing_loses_spans_and_hinders_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans, "WRITE_EVERY_S", 3600.0)
    full = FileSpans(Path("/dev/full"))
    provider = TracerProvider()
    provider.add_span_processor(full)
    begin_trace(provider.get_tracer("t"), "one").end()

    assert not full.force_flush()
    assert "No space left" in caplog.records[-1].__dict__["error"]
    provider.shutdown()


def test_what_a_tenant_writes_into_an_attribute_is_bounded_and_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("filter") as span:
        span.set_attribute("hami.message", "\x1b[2J" + "x" * 300_000)
        span.set_attribute("hami.count", 3)
    provider.shutdown()

    [line] = path.read_text().splitlines()
    attributes = json.loads(line)["attributes"]
    assert attributes["hami.message"].startswith("\\x1b[2Jxxx")
    assert len(attributes["hami.message"]) == spans.MOST_OF_AN_ATTRIBUTE
    assert attributes["hami.count"] == 3
