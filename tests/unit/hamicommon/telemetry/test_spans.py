"""Finished spans reach the file: one line each, those that are sampled, within a bound."""

import json
from pathlib import Path

import pytest
from hamicommon.telemetry import spans
from hamicommon.telemetry.spans import FileSpans
from opentelemetry.sdk.trace import TracerProvider, sampling

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


def test_a_file_gets_the_spans_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "WRITE_EVERY_S", 0.0)
    path = tmp_path / "t.jsonl"
    provider, written = TracerProvider(), FileSpans(path)
    provider.add_span_processor(written)
    provider.get_tracer("t").start_span("one").end()

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
    provider.get_tracer("t").start_span("one").end()
    provider.shutdown()

    assert path.read_bytes() == b""


def test_spans_beyond_the_bound_are_lost_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans, "MOST_WAITING", 2)
    monkeypatch.setattr(spans, "WRITE_EVERY_S", 3600.0)
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(FileSpans(path))
    for number in range(5):
        provider.get_tracer("t").start_span(str(number)).end()
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
    provider.get_tracer("t").start_span("one").end()

    assert not full.force_flush()
    assert "No space left" in caplog.records[-1].__dict__["error"]
    provider.shutdown()
