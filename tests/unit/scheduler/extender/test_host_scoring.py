"""Which pods are scored, and what of it shows."""

from __future__ import annotations

from typing import Any

import pytest
from hami_scheduler.extender import filter as host_scoring
from hami_scheduler.extender.filter import HostScoring
from hami_scheduler.extender.protocol import ExtenderArgs
from hami_scheduler.metrics import SchedulerInstruments
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.vendors.pod_request import PodRequests
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.hamicommon.placement import clusters
from tests.unit.hamicommon.simulation.objects import every_vendor

NAMES = (NodeName("with"), NodeName("without"))
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def scoring(instruments: SchedulerInstruments | None = None) -> HostScoring:
    view: ClusterView = clusters.view_of({"with": [clusters.card("c")]})
    return HostScoring(
        cluster=view,
        requests=PodRequests(vendors=every_vendor(), defaults=Policy()),
        instruments=instruments or SchedulerInstruments(),
    )


def args(pod: dict[str, Any]) -> ExtenderArgs:
    return ExtenderArgs(pod=pod, node_names=NAMES, nodes=None)


@pytest.mark.parametrize(
    ("spec", "scores"),
    [
        pytest.param({"containers": [{"name": "c"}]}, [9, 10], id="nothing"),
        pytest.param({"containers": [{"name": "c", "resources": GPU}]}, [0, 0], id="a card"),
        pytest.param(
            {"containers": [{"name": "c"}], "initContainers": [{"name": "i", "resources": GPU}]},
            [0, 0],
            id="a card for an init container",
        ),
        pytest.param(
            {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]},
            [0, 0],
            id="a claim",
        ),
        pytest.param({"containers": [], "resourceClaims": []}, [9, 10], id="no claim"),
        pytest.param(None, [9, 10], id="no spec"),
    ],
)
def test_pods_that_ask_for_no_card_are_scored_and_others_are_not(
    spec: dict[str, Any] | None, scores: list[int]
) -> None:
    found = scoring().scores(args({"metadata": {}, "spec": spec}))

    assert [found[name] for name in NAMES] == scores


def test_a_cpu_that_can_not_be_read_counts_as_none() -> None:
    odd = {"requests": {"cpu": "much"}}
    pod = {"spec": {"containers": [{"name": "c", "resources": odd}]}}

    assert scoring().scores(args(pod)) == {"with": 9, "without": 10}


def test_a_span_names_the_pod_and_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(host_scoring, "tracer", provider.get_tracer("test"))
    instruments = SchedulerInstruments()

    scoring(instruments).scores(args({"metadata": {"name": "web", "uid": "u"}, "spec": {}}))

    [span] = spans.get_finished_spans()
    assert span.name == "score-hosts"
    attributes = dict(span.attributes or {})
    assert attributes["k8s.pod.name"] == "web"
    assert attributes["hami.outcome"] == "scored"
    assert attributes["hami.candidates"] == 2
    count = instruments.registry.get_sample_value(
        "hami_scheduler_host_score_seconds_count", {"outcome": "scored"}
    )
    assert count == 1
