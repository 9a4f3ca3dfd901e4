"""A real viewer of traces behind a real collector, as `docker-compose.yml` puts them together.

In: the folder of both (`HAMI_TRACE_VIEWER`: `otelcol`, an OpenTelemetry Collector with the core
components, and `victoria-traces`, which answers Jaeger's query API). The collector runs on the file
that compose gives it; where Jaeger would take OTLP over gRPC, a second collector does, and passes
it on to the viewer, which takes OTLP over HTTP alone.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from hamilocal.supervisor.ports import free_port

from tests.alerts.live import ROOT, until

FOLDER = "HAMI_TRACE_VIEWER"
PROGRAMS = ("otelcol", "victoria-traces")
COLLECTED = ROOT / "k8s" / "compose" / "observe" / "otel-collector.yaml"
Json = dict[str, Any]


def viewer_folder() -> Path:
    """Skips where there is none."""
    named = os.environ.get(FOLDER)
    if not named:
        pytest.skip(f"{FOLDER} names no folder of a trace viewer ({', '.join(PROGRAMS)})")
    folder = Path(named)
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        pytest.fail(f"{FOLDER}: {folder} has no {', '.join(missing)}")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """One span as the viewer has it; ids in hexadecimal digits."""

    trace_id: str
    span_id: str
    name: str
    service: str
    parent_id: str
    links: frozenset[tuple[str, str]]
    """(trace, span) that it follows from."""
    tags: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceViewer:
    """Jaeger's query API, and where services send their spans."""

    url: str
    otlp_endpoint: str

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; None where it has none."""
        asked = f"{self.url}/api/{path}?{urlencode(parameters)}"
        try:
            with urlopen(asked, timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as exc:
            if exc.code != 404:
                raise AssertionError(f"{asked}: {exc.code}: {exc.read()!r}") from exc
            return None

    def trace(self, trace_id: str) -> dict[str, ShownSpan]:
        """Return the spans of a trace by id; empty before one has arrived."""
        return spans_of(self.get(f"traces/{trace_id}") or [])


def spans_of(traces: Sequence[Json]) -> dict[str, ShownSpan]:
    """Return the spans of all traces of one answer by id."""
    found = {}
    for trace in traces:
        services = {key: one["serviceName"] for key, one in trace["processes"].items()}
        for span in trace["spans"]:
            # A link may come as a child's reference; its trace then is another one.
            own, links = "", set()
            for one in span["references"]:
                if one["traceID"] == span["traceID"] and one["refType"] == "CHILD_OF":
                    own = one["spanID"]
                else:
                    links.add((one["traceID"], one["spanID"]))
            found[span["spanID"]] = ShownSpan(
                trace_id=span["traceID"],
                span_id=span["spanID"],
                name=span["operationName"],
                service=services[span["processID"]],
                parent_id=own,
                links=frozenset(links),
                tags=frozenset((one["key"], str(one["value"])) for one in span["tags"]),
            )
    return found


@contextmanager
def trace_viewer(home: Path, folder: Path) -> Iterator[TraceViewer]:
    """Runs while the block does."""
    shown, received, collected = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{shown}"
    taken = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{received}"}}}},
        "exporters": {"otlphttp": {"traces_endpoint": f"{url}/insert/opentelemetry/v1/traces"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
        },
    }
    composed = yaml.safe_load(COLLECTED.read_text())
    composed["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = f"127.0.0.1:{collected}"
    composed["exporters"]["otlp"]["endpoint"] = f"127.0.0.1:{received}"
    stored = [f"-httpListenAddr=127.0.0.1:{shown}", f"-storageDataPath={folder / 'data'}"]
    found = TraceViewer(url=f"{url}/select/jaeger", otlp_endpoint=f"http://127.0.0.1:{collected}")
    with ExitStack() as stack:
        stack.enter_context(_running(home / "victoria-traces", stored, folder / "viewer.log"))
        for name, config in (("taken", taken), ("composed", composed)):
            file = folder / f"{name}.yaml"
            file.write_text(yaml.safe_dump(config))
            argv = [f"--config={file}"]
            stack.enter_context(_running(home / "otelcol", argv, folder / f"{name}.log"))
        until(lambda: _answers(found), "the trace viewer to answer")
        yield found


@contextmanager
def _running(program: Path, argv: list[str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen([program, *argv], stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _answers(found: TraceViewer) -> bool:
    try:
        found.get("services")
    except OSError:
        return False
    return True
