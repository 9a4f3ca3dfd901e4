"""Metrics of all services keep the rules of Prometheus: names, units, labels, help, how many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import pytest
from hami_metrics.domain.cluster import (
    ClusterMigInstance,
    PodSlice,
    Quota,
)
from hami_metrics.exposition.families import families
from hami_node_agent.devices.health import HealthCause
from hami_node_agent.metrics.collectors import NodeCollector
from hami_node_agent.metrics.health import card_families
from hami_node_agent.usage.sampler import Observation
from hami_scheduler.metrics import SchedulerInstruments
from hamicommon.domain.devices import GpuDevice
from hamicommon.events import ContainerSample, DeviceSample
from hamicommon.telemetry.exposition import exposition
from hamicommon.telemetry.moments import CertificateExpiry, Moment, ShownCertificate
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from tests.metric_registry import EMPTY, Declared, list_declared, node_agent
from tests.unit.devices import a_cluster_card, a_device

PAGE = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
CARDS = 8

HAMI = frozenset(
    {
        "hami_gpu_shared_count",
        "hami_gpu_core_limit_ratio",
        "hami_gpu_core_allocated_ratio",
        "hami_vgpu_core_allocated_ratio",
        "hami_host_gpu_utilization_ratio",
        "hami_host_gpu_memory_controller_utilization_ratio",
        "hami_container_device_utilization_ratio",
        "hami_vgpu_core_used_percent",
        "hami_vgpu_core_limit_percent",
        "hami_node_gpu_overview",
        "hami_gpu_memory_allocated_bytes",
        "hami_resource_quota_used",
    }
)
"""HAMi's names whose unit or labels are not as they should be; they stay as they are."""
LABELS = frozenset(
    {
        *("zone", "type"),
        *("node", "device_uuid", "device_index", "device_type", "vdevice_index"),
        *("namespace", "pod", "container", "container_index", "quota_name"),
        *("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"),
        *("placement_start", "placement_size"),
        *("outcome", "reason", "phase", "state", "class", "result", "cause", "kind", "age", "fits"),
        *("verdict", "what", "bucket", "loop", "error", "owner", "change", "way", "request_class"),
        *("service", "certificate", "xid", "counts", "origin"),
        *("version", "revision", "build_date", "go_version", "compiler", "platform"),
    }
)
"""Each from a set that the cluster or the code bounds."""
WRONG_UNITS = re.compile(r"_(mib|mb|gib|gb|kib|kb|ms|millis\w*|us|minutes|hours|percent)(_|$)")
RESERVED = re.compile(r"_(count|sum|bucket|info|created)$")
ALL = pytest.mark.parametrize(
    "metric", list_declared(), ids=lambda each: f"{each.service}-{each.name}"
)


@ALL
def test_a_name_has_our_prefix_a_base_unit_and_no_reserved_ending(metric: Declared) -> None:
    assert re.fullmatch(r"hami_[a-z][a-z0-9_]*", metric.name)
    if metric.name in HAMI:
        return
    assert not WRONG_UNITS.search(metric.name)
    if metric.name not in ("hami_build_info",) and not metric.name.endswith("_info"):
        assert not RESERVED.search(metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    if metric.type == "histogram":
        assert metric.name.endswith(("_seconds", "_bytes"))
    if "Unix time" in metric.text:
        assert metric.name.endswith("_timestamp_seconds")
    if metric.name.endswith("_ratio"):
        assert re.search(r"0(-| to )1", metric.text)


@ALL
def test_help_is_a_sentence_and_labels_are_bounded(metric: Declared) -> None:
    assert len(metric.text) >= 8
    allowed = LABELS | ({"device_cores", "device_memory_limit", "limit"} & metric.labels)
    assert metric.labels <= (allowed if metric.name in HAMI else LABELS)


def test_hamis_names_are_named_because_they_need_it() -> None:
    assert {each.name for each in list_declared()} >= HAMI


def test_one_name_has_one_meaning_in_all_services() -> None:
    texts: dict[str, set[str]] = {}
    for each in list_declared():
        if each.name != "hami_build_info":  # HAMi's, with the labels of each
            texts.setdefault(each.name, set()).add(each.text)

    assert {name for name, found in texts.items() if len(found) > 1} == set()


def series(found: Iterable[Metric]) -> int:
    return sum(len(metric.samples) for metric in found)


def formula(port: str) -> str:
    """Return the page's formula."""
    [found] = re.findall(rf"^\| `:{port}` \| `([^`]+)`", PAGE.read_text(), re.MULTILINE)
    return str(found)


CARD = a_cluster_card(used_slots=1, used_memory_mib=4096, used_core_percent=30)


@pytest.mark.parametrize(("nodes", "per_node", "slices", "quotas"), [(0, 0, 0, 0), (3, 8, 5, 2)])
def test_the_clusters_page_has_as_many_series_as_its_formula(
    nodes: int, per_node: int, slices: int, quotas: int
) -> None:
    cards = tuple(
        replace(CARD, node=f"n{n}", uuid=f"GPU-{n}-{c}", index=c)
        for n in range(nodes)
        for c in range(per_node)
    )
    snapshot = replace(
        EMPTY,
        taken_at=NOW,
        cards=cards,
        slices=tuple(
            PodSlice(
                namespace="a",
                pod_name=f"p{i}",
                node="n0",
                device_uuid="GPU-0-0",
                memory_mib=1,
                core_percent=1,
            )
            for i in range(slices)
        ),
        instances=tuple(
            ClusterMigInstance(
                node="n0",
                device_uuid="GPU-0-0",
                device_index=0,
                mig_uuid=f"MIG-{i}",
                profile="1g.10gb",
                gpu_instance_id=i,
                compute_instance_id=0,
                start=i,
                size=1,
            )
            for i in range(quotas)
        ),
        quotas=tuple(
            Quota(namespace=f"a{i}", resource="r", limit=1, used=0) for i in range(quotas)
        ),
        heartbeats={f"n{n}": NOW for n in range(nodes)},
    )

    known = {
        "cards": len(cards),
        "slices": slices,
        "nodes": nodes,
        "instances": quotas,
        "quotas": quotas,
    }
    assert series(families(snapshot, now=NOW)) == eval(formula("9395"), {}, known)


def numbered_card(index: int) -> GpuDevice:
    return a_device(f"GPU-{index}", index=index, type="A100")


class Cards:
    """Eight that are well, and nothing happened to them."""

    xids_seen: ClassVar[dict[tuple[str, int, bool], int]] = {}
    health_changes: ClassVar[dict[tuple[str, HealthCause], int]] = {}

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(numbered_card(i) for i in range(CARDS))


def test_a_nodes_page_has_as_many_series_as_its_formula() -> None:
    seen = Observation(
        devices=tuple(
            DeviceSample(
                uuid=f"GPU-{i}",
                index=i,
                type="A100",
                memory_used_bytes=1,
                gpu_percent=1,
                memory_controller_percent=1,
            )
            for i in range(CARDS)
        ),
        containers=tuple(
            ContainerSample(
                pod_uid=f"u{i}",
                namespace="a",
                pod=f"p{i}",
                container="c",
                vdevice_index=0,
                uuid="GPU-0",
                memory_used_bytes=1,
                memory_limit_bytes=1,
                core_percent=1,
                core_limit_percent=1,
                last_kernel_at=NOW,
                context_bytes=0,
                module_bytes=0,
                buffer_bytes=0,
                processes=1,
            )
            for i in range(16)
        ),
    )
    empty = {"hami_host_gpu_memory_used_bytes", "hami_node_agent_card_healthy", "hami_build_info"}
    quiet = [each for each in node_agent() if each.name not in empty]
    found = [
        *NodeCollector(lambda: seen, list, node="n", version="1").collect(),
        *card_families(Cards(), node="n"),
    ]

    known = {"cards": CARDS, "containers": 16, "enforced": 0}
    assert series(found) + series(quiet) == eval(formula("9394"), {}, known)


def test_openmetrics_is_written_where_it_is_asked_for_and_carries_the_exemplar() -> None:
    instruments = SchedulerInstruments()
    exemplar = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
    instruments.decision_seconds.labels("total").observe(0.004, exemplar)

    asked = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    text, media_type = exposition(instruments.registry, asked)

    assert media_type.startswith("application/openmetrics-text")
    samples = [s for f in openmetrics_families(text.decode()) for s in f.samples]
    assert [s.exemplar.labels for s in samples if s.exemplar] == [exemplar]
    assert not any(s.name.endswith("_created") for s in samples)


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/plain;version=0.0.4", "openmetrics", ";;,,=", "text/html,\x00"]
)
def test_every_other_scraper_gets_prometheus_text(accept: str) -> None:
    text, media_type = exposition(SchedulerInstruments().registry, accept)

    assert media_type.startswith("text/plain")
    assert b"# HELP hami_scheduler_decision_duration_seconds" in text
    assert b"# EOF" not in text


@pytest.mark.parametrize("version", ["", ";version=abc", ";version=9.9", ";version=1.0.0\t"])
def test_a_broken_version_of_openmetrics_gets_the_version_that_there_is(version: str) -> None:
    _, media_type = exposition(CollectorRegistry(), f"application/openmetrics-text{version}")

    assert "version=1.0.0" in media_type


def test_a_moment_that_there_is_not_is_absent() -> None:
    moment, certificates = Moment("hami_x_timestamp_seconds", "x"), CertificateExpiry("s")
    registry = CollectorRegistry()
    registry.register(moment)
    registry.register(certificates)
    of = {"service": "s", "certificate": "nats"}

    assert registry.get_sample_value("hami_x_timestamp_seconds") is None
    moment.set(NOW)
    certificates.show(ShownCertificate.NATS, NOW)
    assert registry.get_sample_value("hami_x_timestamp_seconds") == NOW.timestamp()
    expiry = "hami_certificate_expiry_timestamp_seconds"
    assert registry.get_sample_value(expiry, of) == NOW.timestamp()
    moment.set(None)
    certificates.show(ShownCertificate.NATS, None)
    assert registry.get_sample_value("hami_x_timestamp_seconds") is None
    assert registry.get_sample_value(expiry, of) is None


def test_that_nobody_waits_is_known_and_zero() -> None:
    [pending] = [each for each in families(EMPTY, now=NOW) if each.name == "hami_pending_pods"]

    assert sum(sample.value for sample in pending.samples) == 0
    assert len(pending.samples) == len({tuple(s.labels.items()) for s in pending.samples}) > 4
