"""Log lines are JSON with their context, bounded."""

import json
import logging
import subprocess
import sys
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


def test_a_secret_in_any_part_of_a_line_is_masked() -> None:
    address = "postgresql://hami:swordfish@db/hami"
    try:
        raise OSError(f"no route to {address}")
    except OSError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "no %s", (address,), sys.exc_info()
        )
    record.__dict__.update(url=address, urls=[address], long="x" * 2000 + address)

    with telemetry.log_context(address=address):
        written = JsonFormatter("service").format(record)

    assert "swordfish" not in written
    assert json.loads(written)["url"] == "postgresql://***@db/hami"


DYING = """
import sys, threading, warnings
from hamicommon import telemetry
from hamicommon.settings import TelemetrySettings

telemetry.setup("service", TelemetrySettings())
warnings.warn("a library warns")
def end():
    raise ValueError("redis://:swordfish@redis/0")
thread = threading.Thread(target=end, name="beside")
thread.start()
thread.join()
end()
"""


def test_what_python_would_print_is_a_line_each() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DYING], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (1, "")
    warned, thread, ended = map(json.loads, done.stdout.splitlines())
    assert (warned["level"], warned["logger"]) == ("WARNING", "py.warnings")
    assert (thread["level"], thread["thread_name"]) == ("CRITICAL", "beside")
    assert (ended["level"], ended["message"]) == ("CRITICAL", "Exiting on an unexpected error")
    assert "ValueError: redis://***@redis/0" in ended["exception"]
    assert "swordfish" not in done.stdout
