"""`telemetry.setup` in a separate process: spans reach the file unless the sampler drops them."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hamicommon.settings import TelemetrySettings
from hamicommon.telemetry import target_info
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from pydantic import ValidationError

PROGRAM = """
from hamicommon import telemetry
from hamicommon.settings import TelemetrySettings
from opentelemetry import trace

telemetry.setup("service", TelemetrySettings())
with trace.get_tracer("t").start_as_current_span("s") as span:
    span.set_attribute("hami.message", "line\\nbreak")
    print(telemetry.traceparent())
telemetry.shutdown()
"""


def is_sampled(path: Path, **env: str) -> bool:
    """Whether the traceparent of the one span has W3C's flag `sampled`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"HAMI_TELEMETRY_TRACES_FILE": str(path)} | env,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    flags = done.stdout.strip().rpartition("-")[2]
    return bool(int(flags, 16) & 1)


def test_a_span_reaches_the_file_clipped_and_with_its_service(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    assert is_sampled(path)
    [line] = map(json.loads, path.read_text().splitlines())
    assert (line["name"], line["service"]) == ("s", "service")
    assert line["attributes"] == {"hami.message": "line\\nbreak"}


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Serve an OTLP/HTTP endpoint; yield its address and the received requests."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_parts: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_at_a_collector_name_their_cluster(tmp_path: Path) -> None:
    with collector() as (address, received):
        named = {
            "HAMI_TELEMETRY_OTLP_ENDPOINT": address,
            "HAMI_TELEMETRY_CLUSTER_NAME": "prod-eu",
        }
        assert is_sampled(tmp_path / "t.jsonl", **named)

    attributes = received[0].resource_spans[0].resource.attributes
    found = {each.key: each.value.string_value for each in attributes}
    assert (found["service.name"], found["k8s.cluster.name"]) == ("service", "prod-eu")


def test_metrics_name_the_cluster_once_and_not_in_every_series() -> None:
    registry = CollectorRegistry()
    Counter("pods", "Pods", registry=registry)
    registry.set_target_info(target_info("service", TelemetrySettings(cluster_name="prod-eu")))

    page = generate_latest(registry).decode()

    assert 'target_info{k8s_cluster_name="prod-eu",service_name="service"} 1.0' in page
    assert page.count("prod-eu") == 1


def test_a_cluster_without_a_name_has_no_sample() -> None:
    registry = CollectorRegistry()
    registry.set_target_info(target_info("service", TelemetrySettings()))

    assert generate_latest(registry) == b""


@pytest.mark.parametrize("name", ["two parts", "a\nb", "<b>", "x" * 254])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        TelemetrySettings(cluster_name=name)


def test_a_collector_gets_the_same_clipped_text_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with collector() as (address, received):
        assert is_sampled(path, HAMI_TELEMETRY_OTLP_ENDPOINT=address)

    [span] = received[0].resource_spans[0].scope_spans[0].spans
    assert {each.key: each.value.string_value for each in span.attributes} == {
        "hami.message": "line\\nbreak"
    }
    assert json.loads(path.read_text())["attributes"] == {"hami.message": "line\\nbreak"}


@pytest.mark.parametrize(
    ("sampler", "argument"),
    [("always_off", ""), ("parentbased_traceidratio", "0.0")],
)
def test_the_standard_variables_choose_what_is_sampled(
    sampler: str, argument: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}

    assert not is_sampled(path, **variables)
    assert path.read_bytes() == b""
