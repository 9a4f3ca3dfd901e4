"""Log lines are JSON with their context, bounded."""

import json
import logging
from pathlib import Path

from hamicommon import telemetry
from hamicommon.telemetry.logs import JsonFormatter
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider


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


def test_a_number_of_more_than_64_bits_is_written_too() -> None:
    assert line("x", amount=2**80)["amount"] == 2**80


def test_a_line_names_the_current_trace() -> None:
    provider = TracerProvider()
    with provider.get_tracer("t").start_as_current_span("s"):
        span = trace.get_current_span().get_span_context()
        assert line("x")["trace_id"] == f"{span.trace_id:032x}"
    provider.shutdown()


def test_no_field_of_a_line_is_longer_than_its_bound() -> None:
    huge = "x" * 1_000_000
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, huge, (), None)
    record.__dict__.update(error=huge, n=1)

    written = JsonFormatter("service").format(record)
    assert len(written) < 3000
    assert json.loads(written)["error"].endswith("...")
