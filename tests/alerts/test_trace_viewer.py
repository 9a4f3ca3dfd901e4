"""A running system's spans in a real viewer, by way of a real collector on compose's file."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import yaml
from hamilocal.supervisor.ports import free_port

from tests.alerts.conftest import HAMICTL, local_system
from tests.alerts.grafana import grafana, grafana_folder
from tests.alerts.live import ROOT, until

pytestmark = [pytest.mark.slow, pytest.mark.integration]


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
    """Run it inside the block."""
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


SERVICES = {"hami-webhook", "hami-scheduler", "hami-node-agent"}
OF_A_DECISION = {"filter", "place", "reserve", "bind", "allocate", "first-kernel"}
OPEN_METRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
EXEMPLAR = re.compile(r'# \{.*?trace_id="([0-9a-f]{32})"')


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceViewer]:
    with trace_viewer(viewer_folder(), tmp_path_factory.mktemp("viewer")) as found:
        yield found


@pytest.fixture(scope="module")
def traced(viewer: TraceViewer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Json]:
    """The demo of `make up`, whose services send their spans to the collector."""
    env = {
        "HAMI_TELEMETRY_OTLP_ENDPOINT": viewer.otlp_endpoint,
        "HAMI_METRICS_PAGES_TRACE_URL": f"{viewer.url}/api/traces/{{trace_id}}",
    }
    with local_system(tmp_path_factory.mktemp("system"), env) as up:
        yield up


def read_spans(up: Json) -> list[Json]:
    """All spans of the system's files, ids as the viewer writes them."""
    return [
        json.loads(line.replace('"0x', '"'))
        for file in sorted(Path(up["traces"]).glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def decided(traced: Json) -> list[Json]:
    """The written spans of one pod's decision, which went as far as its first kernel."""
    found: list[Json] = []

    def whole() -> bool:
        spans = read_spans(traced)
        traces = [one["context"]["trace_id"] for one in spans if one["name"] == "first-kernel"]
        for trace_id in traces:
            found[:] = [one for one in spans if one["context"]["trace_id"] == trace_id]
            if {one["name"] for one in found} >= OF_A_DECISION:
                return True
        return False

    until(whole, "a pod's first kernel")
    return found


def wait_for_trace(viewer: TraceViewer, trace_id: str, spans: int) -> dict[str, Any]:
    """The trace in the viewer, once so many spans of it are there."""
    until(lambda: len(viewer.trace(trace_id)) >= spans, f"{spans} spans of {trace_id}")
    return viewer.trace(trace_id)


def test_the_collector_takes_the_file_of_compose_as_it_is() -> None:
    done = subprocess.run(
        [viewer_folder() / "otelcol", "validate", f"--config={COLLECTED}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_pods_decision_is_one_trace_from_filter_to_the_first_kernel(
    viewer: TraceViewer, decided: list[Json]
) -> None:
    trace_id = decided[0]["context"]["trace_id"]
    shown = wait_for_trace(viewer, trace_id, len(decided))

    assert {
        (one.span_id, one.name, one.service, one.parent_id or None) for one in shown.values()
    } == {
        (one["context"]["span_id"], one["name"], one["service"], one["parent_id"])
        for one in decided
    }
    assert {one.service for one in shown.values()} == SERVICES - {"hami-webhook"}
    # One tree: all spans hang on the first one.
    [root] = [one for one in shown.values() if not one.parent_id]
    assert root.name == "filter"
    assert {one.parent_id for one in shown.values()} - {""} <= shown.keys()


def test_the_decision_leads_to_the_admission_of_its_pod(
    viewer: TraceViewer, decided: list[Json]
) -> None:
    shown = wait_for_trace(viewer, decided[0]["context"]["trace_id"], len(decided))
    [root] = [one for one in shown.values() if not one.parent_id]
    [(trace_id, span_id)] = root.links

    admission = wait_for_trace(viewer, trace_id, 1)[span_id]
    assert (admission.name, admission.service) == ("admission", "hami-webhook")
    names = [
        {value for key, value in one.tags if key == "k8s.pod.name"} for one in (root, admission)
    ]
    assert names[0] == names[1] != set()


def test_every_span_that_the_services_wrote_arrives(
    viewer: TraceViewer, traced: Json, decided: list[Json]
) -> None:
    spans = read_spans(traced)
    assert len(spans) > len(decided)
    missing: list[Any] = []

    def all_there() -> bool:
        traces = {one["context"]["trace_id"] for one in spans}
        found = {one for trace_id in traces for one in viewer.trace(trace_id)}
        missing[:] = [one["name"] for one in spans if one["context"]["span_id"] not in found]
        return not missing

    until(all_there, "every span")
    assert set(viewer.get("services")) >= SERVICES


def test_hamictl_draws_the_spans_that_the_viewer_has(
    viewer: TraceViewer, traced: Json, decided: list[Json]
) -> None:
    pod = next(one["attributes"]["k8s.pod.name"] for one in decided if one["name"] == "filter")
    shown = wait_for_trace(viewer, decided[0]["context"]["trace_id"], len(decided))
    drawn = subprocess.run(
        [HAMICTL, "trace", pod],
        cwd=Path(traced["traces"]).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    names = {line.split()[0] for line in drawn.splitlines()[2:] if line}
    assert {one.name for one in shown.values()} | {"admission"} <= names


def test_a_pods_page_links_to_its_trace(traced: Json, decided: list[Json]) -> None:
    name = next(one["attributes"]["k8s.pod.name"] for one in decided if one["name"] == "filter")
    with urlopen(f"{traced['pages_url']}/pods/default/{name}", timeout=30) as answer:
        page = answer.read().decode()
    trace_id = decided[0]["context"]["trace_id"]
    [link] = set(re.findall(r'href="(http[^"]+/api/traces/[0-9a-f]{32})"', page))

    assert link.endswith(trace_id)
    with urlopen(link, timeout=30) as answer:
        found = spans_of(json.load(answer)["data"])
    assert "first-kernel" in {one.name for one in found.values()}


def test_an_exemplar_of_the_decisions_duration_opens_its_trace(
    viewer: TraceViewer, traced: Json, decided: list[Json]
) -> None:
    asked = Request(f"{traced['scheduler_url']}/metrics", headers=OPEN_METRICS)
    with urlopen(asked, timeout=30) as answer:
        found = EXEMPLAR.findall(answer.read().decode())

    assert found
    assert "filter" in {one.name for one in wait_for_trace(viewer, found[-1], 1).values()}


def test_grafana_opens_the_trace_through_the_data_source_of_compose(
    viewer: TraceViewer, decided: list[Json], tmp_path: Path
) -> None:
    trace_id = decided[0]["context"]["trace_id"]
    shown = wait_for_trace(viewer, trace_id, len(decided))
    with grafana(grafana_folder(), tmp_path, {"Jaeger": viewer.url}) as found:
        through = found.get(f"datasources/proxy/{found.source('Jaeger')}/api/traces/{trace_id}")

    assert spans_of(through["data"]) == shown
