"""Names, labels and values of protocol 6.5, one line for each metric."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.metrics.collectors import Families, NodeCollector, registry_of
from hami_node_agent.metrics.health import region_families
from hami_node_agent.metrics.legacy import LegacyCollector
from hami_node_agent.usage.regions.reader import Regions
from hami_node_agent.usage.sampler import Observation
from hamicommon.domain.pod_ref import PodRef
from hamicommon.events import ContainerSample, DeviceSample
from hamicommon.k8s.mig import MigReservation, MigSlice
from prometheus_client.exposition import generate_latest
from prometheus_client.utils import floatToGoString

from tests.unit.node_agent.builders import CARD_A

CARD = DeviceSample(
    uuid=CARD_A,
    index=0,
    type="NVIDIA A100",
    memory_used_bytes=5,
    gpu_percent=12.0,
    memory_controller_percent=3.0,
)
# Ahead of any test's clock, however long the run: 0.0 s ago.
LAUNCHED = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=500_000)
CONTAINER = ContainerSample(
    pod_uid="u",
    namespace="default",
    pod="p",
    container="c",
    vdevice_index=0,
    uuid=CARD_A,
    memory_used_bytes=7,
    memory_limit_bytes=9,
    context_bytes=1,
    module_bytes=2,
    buffer_bytes=3,
    core_percent=33.0,
    core_limit_percent=40,
    processes=2,
    last_kernel_at=LAUNCHED,
)
SLICE = MigDevice(
    pod=PodRef(uid="u", namespace="default", name="p"),
    container="c",
    reservation=MigReservation(
        container_index=0,
        device_index=1,
        card=CARD_A,
        slice=MigSlice(profile="1g.5gb", start=0, size=1),
        mig_uuid="MIG-x",
        gpu_instance_id=7,
        compute_instance_id=0,
    ),
)
ALL = Observation(devices=(CARD,), containers=(CONTAINER,))


def text_of(families: Families) -> list[str]:
    text = generate_latest(registry_of(families)).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def new(seen: Observation, slices: Sequence[MigDevice] = ()) -> list[str]:
    return text_of(NodeCollector(lambda: seen, lambda: slices, node="n1", version="1.2").collect)


def legacy(seen: Observation, slices: Sequence[MigDevice] = ()) -> list[str]:
    return text_of(LegacyCollector(lambda: seen, lambda: slices, node="n1").collect)


def test_every_metric_has_hamis_name_and_labels() -> None:
    card = f'device_index="0",device_type="{CARD.type}",device_uuid="{CARD_A}"'
    node = f'{card},node="n1",zone="vGPU"'
    container = (
        f'container="c",device_uuid="{CARD_A}",namespace="default",pod="p",'
        'vdevice_index="0",zone="vGPU"'
    )
    mig = (
        f'compute_instance_id="0",container="c",device_uuid="{CARD_A}",gpu_instance_id="7",'
        'mig_uuid="MIG-x",namespace="default",pod="p",profile="1g.5gb",vdevice_index="1",'
        'zone="vGPU"'
    )

    launched = floatToGoString(LAUNCHED.timestamp())

    assert new(ALL, [SLICE]) == [
        f"hami_host_gpu_memory_used_bytes{{{node}}} 5.0",
        f"hami_host_gpu_utilization_ratio{{{node}}} 12.0",
        f"hami_host_gpu_memory_controller_utilization_ratio{{{node}}} 3.0",
        f"hami_vgpu_memory_used_bytes{{{container}}} 7.0",
        f"hami_vgpu_memory_limit_bytes{{{container}}} 9.0",
        f"hami_vgpu_core_used_percent{{{container}}} 33.0",
        f"hami_vgpu_core_limit_percent{{{container}}} 40.0",
        f"hami_container_device_memory_bytes{{{container}}} 7.0",
        f"hami_container_device_utilization_ratio{{{container}}} 33.0",
        f"hami_container_last_kernel_elapsed_seconds{{{container}}} 0.0",
        f"hami_container_last_kernel_timestamp_seconds{{{container}}} {launched}",
        f"hami_vgpu_memory_context_bytes{{{container}}} 1.0",
        f"hami_vgpu_memory_module_bytes{{{container}}} 2.0",
        f"hami_vgpu_memory_buffer_bytes{{{container}}} 3.0",
        f"hami_vgpu_processes{{{container}}} 2.0",
        f"hami_mig_device_info{{{mig}}} 1.0",
        'hami_build_info{version="1.2"} 1.0',
    ]


def test_every_older_metric_has_hamis_name_and_labels() -> None:
    card = (
        f'deviceidx="0",devicetype="NVIDIA-NVIDIA A100",deviceuuid="{CARD_A}",nodeid="n1",'
        'zone="vGPU"'
    )
    names = f'ctrname="c",deviceuuid="{CARD_A}"'
    rest = 'podname="p",podnamespace="default",vdeviceid="0",zone="vGPU"'
    parts = f'context="1",ctrname="c",data="3",deviceuuid="{CARD_A}",module="2",offset="1"'
    mig = f'{names},instanceid="7",{rest}'.replace('vdeviceid="0"', 'vdeviceid="1"')

    assert legacy(ALL, [SLICE]) == [
        f"HostGPUMemoryUsage{{{card}}} 5.0",
        f"HostCoreUtilization{{{card}}} 12.0",
        f"vGPU_device_memory_usage_in_bytes{{{names},{rest}}} 7.0",
        f"vGPU_device_memory_limit_in_bytes{{{names},{rest}}} 9.0",
        f"Device_utilization_desc_of_container{{{names},{rest}}} 33.0",
        f"Device_last_kernel_of_container{{{names},{rest}}} 0.0",
        f"Device_memory_desc_of_container{{{parts},{rest}}} 7.0",
        f"MigInfo{{{mig}}} 1.0",
    ]


def test_what_is_unknown_is_absent() -> None:
    card = DeviceSample(uuid=CARD_A, index=0, type="NVIDIA A100", memory_used_bytes=5)
    container = ContainerSample(
        pod_uid="u",
        namespace="default",
        pod="p",
        container="c",
        vdevice_index=0,
        uuid=CARD_A,
        memory_limit_bytes=9,
    )
    unknown = Observation(devices=(card,), containers=(container,))

    assert [line.partition("{")[0] for line in new(unknown)] == [
        "hami_host_gpu_memory_used_bytes",
        "hami_vgpu_memory_limit_bytes",
        "hami_vgpu_processes",
        "hami_build_info",
    ]
    assert new(Observation()) == ['hami_build_info{version="1.2"} 1.0']
    assert legacy(Observation()) == []


def test_problems_of_regions_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a_main").mkdir()
    (tmp_path / "a_main" / "a.cache").write_bytes(b"rubbish!")
    regions = Regions(tmp_path)
    regions.read(now_ns=0)

    assert text_of(partial(region_families, regions)) == [
        'hami_node_agent_region_failures_total{kind="not_a_region"} 1.0',
        "hami_node_agent_unreadable_regions 1.0",
    ]
