"""`telemetry.setup` in a process of its own: spans reach the file unless the sampler drops them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from hamicommon import telemetry
from hamicommon.settings import TelemetrySettings
from opentelemetry import trace

telemetry.setup("service", TelemetrySettings(traces_file=Path(sys.argv[1])))
with trace.get_tracer("t").start_as_current_span("s") as span:
    span.set_attribute("hami.message", "line\\nbreak")
    print(telemetry.traceparent())
telemetry.shutdown()
"""


def sampled(path: Path, **env: str) -> bool:
    """Whether the traceparent of the one span has W3C's flag `sampled`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        env=os.environ | env,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    flags = done.stdout.strip().rpartition("-")[2]
    return bool(int(flags, 16) & 1)


def test_a_span_reaches_the_file_clipped_and_with_its_service(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    assert sampled(path)
    [line] = map(json.loads, path.read_text().splitlines())
    assert (line["name"], line["service"]) == ("s", "service")
    assert line["attributes"] == {"hami.message": "line\\nbreak"}


@pytest.mark.parametrize(
    ("sampler", "argument"),
    [("always_off", ""), ("parentbased_traceidratio", "0.0")],
)
def test_the_standard_variables_choose_what_is_sampled(
    sampler: str, argument: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}

    assert not sampled(path, **variables)
    assert path.read_bytes() == b""
