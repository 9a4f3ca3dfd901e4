"""The contract of metric names: HAMi's scheduler names and labels (protocol 4.10)."""

from datetime import UTC, datetime, timedelta

import pytest
from hami_metrics.domain.cluster import (
    ClaimCounts,
    ClusterMigInstance,
    ClusterSnapshot,
    PendingAge,
    PodSlice,
    Quota,
)
from hami_metrics.exposition.families import LedgerCollector, build_info, families
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from tests.unit.devices import a_cluster_card

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MIB = 1024 * 1024

CARD = a_cluster_card(
    node="n1",
    uuid="GPU-1",
    index=3,
    type="NVIDIA A100",
    memory_mib=1000,
    used_slots=2,
    used_memory_mib=250,
    used_core_percent=30,
)
SNAPSHOT = ClusterSnapshot(
    taken_at=NOW,
    cards=(CARD,),
    slices=(
        PodSlice(
            namespace="ns",
            pod_name="p",
            node="n1",
            device_uuid="GPU-1",
            memory_mib=250,
            core_percent=30,
        ),
    ),
    instances=(
        ClusterMigInstance(
            node="n1",
            device_uuid="GPU-1",
            device_index=3,
            mig_uuid="MIG-1",
            profile="2g.20gb",
            gpu_instance_id=5,
            compute_instance_id=0,
            start=4,
            size=2,
        ),
    ),
    quotas=(
        Quota(namespace="ns", resource="nvidia.com/gpumem", limit=2000, used=250),
        Quota(namespace="other", resource="nvidia.com/gpumem", limit=None, used=7),
    ),
    allocations_by_state={"bound": 1},
    allocations_by_origin={"claim": 3, "scheduled": 1},
    claims=ClaimCounts(held=2, holders=3),
    decisions_by_outcome={"placed": 4, "refused": 2},
    pending={("CardInsufficientMemory", PendingAge.UNDER_10M): 2},
    heartbeats={"n1": NOW - timedelta(seconds=4)},
)

HAMI = {
    "hami_gpu_memory_limit_bytes": "node device_uuid device_index device_type",
    "hami_gpu_core_limit_ratio": "node device_uuid device_index device_type",
    "hami_gpu_memory_allocated_bytes": "node device_uuid device_index device_cores device_type",
    "hami_gpu_shared_count": "node device_uuid device_index device_type",
    "hami_gpu_core_allocated_ratio": "node device_uuid device_index device_type",
    "hami_node_gpu_overview": (
        "node device_uuid device_index device_cores device_memory_limit device_type"
    ),
    "hami_node_gpu_memory_allocated_ratio": "node device_uuid device_index device_type",
    "hami_node_gpu_mig_instance_info": (
        "node device_uuid device_index mig_uuid profile gpu_instance_id compute_instance_id "
        "placement_start placement_size"
    ),
    "hami_resource_quota_used": "namespace quota_name limit",
    "hami_resource_quota_limit": "namespace quota_name",
    "hami_vgpu_memory_allocated_bytes": "namespace node pod container_index device_uuid",
    "hami_vgpu_core_allocated_ratio": "namespace node pod container_index device_uuid",
}


def by_name(snapshot: ClusterSnapshot = SNAPSHOT) -> dict[str, Metric]:
    return {family.name: family for family in families(snapshot, now=NOW)}


@pytest.mark.parametrize("name", HAMI)
def test_the_family_is_a_gauge_with_hamis_labels_and_zone(name: str) -> None:
    family = by_name()[name]

    assert family.type == "gauge"
    assert family.samples
    for sample in family.samples:
        assert list(sample.labels) == ["zone", *HAMI[name].split()]
        assert sample.labels["zone"] == "vGPU"


def test_values_are_in_hamis_units() -> None:
    values = {name: family.samples[0].value for name, family in by_name().items()}

    assert values["hami_gpu_memory_limit_bytes"] == 1000 * MIB
    assert values["hami_gpu_core_limit_ratio"] == 100
    assert values["hami_gpu_memory_allocated_bytes"] == 250 * MIB
    assert values["hami_gpu_shared_count"] == 2
    assert values["hami_gpu_core_allocated_ratio"] == 30
    assert values["hami_node_gpu_overview"] == 250 * MIB
    assert values["hami_node_gpu_memory_allocated_ratio"] == 0.25
    assert values["hami_vgpu_memory_allocated_bytes"] == 250 * MIB
    assert values["hami_vgpu_core_allocated_ratio"] == 30
    assert values["hami_resource_quota_used"] == 250
    assert values["hami_node_agent_heartbeat_age_seconds"] == 4
    assert sum(s.value for s in by_name()["hami_pending_pods"].samples) == 2


def test_capacities_are_labels_of_the_overview() -> None:
    labels = by_name()["hami_node_gpu_overview"].samples[0].labels

    assert labels["device_memory_limit"] == "1000"
    assert labels["device_cores"] == "100"
    assert labels["device_index"] == "3"


def test_a_quota_without_a_limit_has_no_limit_sample() -> None:
    samples = by_name()["hami_resource_quota_limit"].samples

    assert [sample.labels["namespace"] for sample in samples] == ["ns"]


def test_an_unknown_ledger_gives_no_sample_at_all() -> None:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(lambda: None, lambda: NOW))

    assert generate_latest(registry) == b""


def test_the_whole_page_renders() -> None:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(lambda: SNAPSHOT, lambda: NOW))

    page = generate_latest(registry).decode()

    assert 'hami_pending_pods{age="under_10m",reason="CardInsufficientMemory"} 2.0' in page
    assert 'hami_pending_pods{age="over_30m",reason="CardInsufficientMemory"} 0.0' in page
    assert 'hami_allocations{state="bound"} 1.0' in page
    assert 'hami_allocations{state="reserved"} 0.0' in page


def test_the_page_counts_live_grants_by_front_end_and_claims_by_holders() -> None:
    found = {
        (sample.name, sample.labels.get("origin", "")): sample.value
        for family in families(SNAPSHOT, now=NOW)
        for sample in family.samples
        if family.name in ("hami_allocations_by_origin", "hami_held_claims", "hami_claim_holders")
    }

    assert found == {
        ("hami_allocations_by_origin", "scheduled"): 1,
        ("hami_allocations_by_origin", "claim"): 3,
        ("hami_allocations_by_origin", "adopted"): 0,
        ("hami_allocations_by_origin", "unmanaged"): 0,
        ("hami_held_claims", ""): 2,
        ("hami_claim_holders", ""): 3,
    }


def test_hamis_older_names_are_there_where_they_are_wanted_with_its_labels() -> None:
    def page(*, older_names: bool) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(LedgerCollector(lambda: SNAPSHOT, lambda: NOW, older_names=older_names))
        return registry

    card = {"zone": "vGPU", "nodeid": "n1", "deviceuuid": "GPU-1", "deviceidx": "3"}
    typed = {**card, "devicetype": "NVIDIA A100"}
    cores = {**typed, "devicecores": "100"}
    pod = {"podnamespace": "ns", "nodename": "n1", "podname": "p", "containeridx": "0"}
    held = {"zone": "vGPU", **pod, "deviceuuid": "GPU-1"}
    expected: list[tuple[str, dict[str, str], float]] = [
        ("GPUDeviceMemoryLimit", typed, 1000 * MIB),
        ("GPUDeviceCoreLimit", typed, 100),
        ("GPUDeviceSharedNum", typed, 2),
        ("GPUDeviceCoreAllocated", typed, 30),
        ("GPUDeviceMemoryAllocated", cores, 250 * MIB),
        ("nodeGPUOverview", {**cores, "devicememorylimit": "1000"}, 250 * MIB),
        ("nodeGPUMemoryPercentage", card, 0.25),
        ("nodeGPUMigInstance", {**card, "migname": "2g.20gb-5"}, 1),
        ("vGPUMemoryAllocated", held, 250 * MIB),
        ("vGPUCoreAllocated", held, 30),
    ]
    for name, labels, value in expected:
        assert page(older_names=True).get_sample_value(name, labels) == value, name
        assert page(older_names=False).get_sample_value(name, labels) is None, name
    quotas = {
        sample.labels["quotanamespace"]: sample.value
        for family in page(older_names=True).collect()
        if family.name == "QuotaUsed"
        for sample in family.samples
    }
    assert quotas["ns"] == 250


def test_build_info_has_hamis_labels_and_no_zone() -> None:
    (sample,) = build_info("1.2", "abc").samples

    assert set(sample.labels) == {
        "version",
        "revision",
        "build_date",
        "go_version",
        "compiler",
        "platform",
    }
    assert sample.value == 1
