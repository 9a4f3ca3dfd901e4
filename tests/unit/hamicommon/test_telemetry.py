"""Log lines are JSON with their context; spans reach the file; traces cross carriers."""

import contextlib
import json
import logging
from pathlib import Path

from hamicommon import telemetry
from hamicommon.telemetry import FileSpanExporter, JsonFormatter
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def line(message: str, **extra: object) -> dict[str, object]:
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, message, (), None)
    record.__dict__.update(extra)
    return dict(json.loads(JsonFormatter("service").format(record)))


def test_a_log_line_carries_extra_fields_and_the_context() -> None:
    with telemetry.log_context(pod_uid="u", node="n"):
        inner = line("placed", cards=2)
    outer = line("later")

    assert inner["message"] == "placed"
    assert (inner["pod_uid"], inner["node"], inner["cards"]) == ("u", "n", 2)
    assert "pod_uid" not in outer


def test_a_value_that_is_no_json_is_written_as_text() -> None:
    assert line("x", path=Path("/a"))["path"] == "/a"


def test_finished_spans_are_one_json_object_per_line(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "t.jsonl"
    exporter = FileSpanExporter(path)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        pass
    provider.shutdown()

    spans = [json.loads(text) for text in path.read_text().splitlines()]
    assert [span["name"] for span in spans] == ["inner", "outer"]
    assert spans[0]["parent_id"] == spans[1]["context"]["span_id"]


def test_a_trace_crosses_a_carrier() -> None:
    context = telemetry.extract({"traceparent": PARENT})
    provider = TracerProvider()

    with provider.get_tracer("t").start_as_current_span("s", context=context):
        assert telemetry.traceparent().split("-")[1] == PARENT.split("-")[1]
        assert telemetry.inject({"a": "b"}).keys() == {"a", "traceparent"}
    provider.shutdown()


def test_a_link_names_the_other_trace_and_garbage_makes_none() -> None:
    [link] = telemetry.link_to(PARENT)

    assert f"{link.context.trace_id:032x}" == PARENT.split("-")[1]
    assert telemetry.link_to("garbage") == []
    assert trace.get_current_span().get_span_context().is_valid is False


def test_probes_are_not_traced() -> None:
    assert telemetry.is_probe({"path": "/readyz"})
    assert not telemetry.is_probe({"path": "/filter"})


def test_a_leaf_span_belongs_to_the_span_around_it_and_keeps_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(path)))
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


def test_a_root_span_begins_a_trace_and_is_current_inside(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(path)))
    tracer = provider.get_tracer("t")

    with tracer.start_as_current_span("outer"):
        begins = telemetry.root_span(tracer, "root", links=[], attributes={"pod": "p"})
        with contextlib.suppress(ValueError), begins as span:
            assert trace.get_current_span() is span
            raise ValueError("no")
        assert trace.get_current_span() is not span
    provider.shutdown()

    root, outer = [json.loads(text) for text in path.read_text().splitlines()]
    assert (root["parent_id"], root["status"], root["attributes"]) == (None, "ERROR", {"pod": "p"})
    assert root["context"]["trace_id"] != outer["context"]["trace_id"]


def test_the_traceparent_is_what_w3c_propagation_would_inject() -> None:
    provider = TracerProvider()
    with provider.get_tracer("t").start_as_current_span("s"):
        assert telemetry.traceparent() == telemetry.inject()["traceparent"]
    provider.shutdown()

    assert telemetry.traceparent() == ""


def test_a_number_of_more_than_64_bits_is_written_too() -> None:
    assert line("x", amount=2**80)["amount"] == 2**80
