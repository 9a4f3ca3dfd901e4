from datetime import UTC, datetime, timedelta

from hami_node_agent.exposition import NodeCollector, registry_of
from hami_node_agent.usage import Observation
from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client.exposition import generate_latest

from tests.unit.node_agent.builders import CARD_A

CARD = DeviceSample(uuid=CARD_A, index=0, type="NVIDIA A100", memory_used_bytes=5, gpu_percent=12.0)


def text_of(seen: Observation) -> list[str]:
    registry = registry_of(NodeCollector(lambda: seen, node="n1", version="1.2"))
    return [
        line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
    ]


def test_cards_are_shown_with_hamis_names_and_labels() -> None:
    where = f'device_index="0",device_type="NVIDIA-NVIDIA A100",device_uuid="{CARD_A}"'

    lines = text_of(Observation(devices=(CARD,)))

    assert f'hami_host_gpu_memory_used_bytes{{{where},node="n1",zone="vGPU"}} 5.0' in lines
    assert f'hami_host_gpu_utilization_ratio{{{where},node="n1",zone="vGPU"}} 12.0' in lines


def test_what_is_unknown_is_absent() -> None:
    lines = text_of(Observation(devices=(CARD,)))

    assert not any("memory_controller" in line for line in lines)
    assert text_of(Observation()) == ['hami_build_info{version="1.2"} 1.0']


def test_containers_are_shown_with_hamis_names_and_labels() -> None:
    sample = ContainerSample(
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
        buffer_bytes=4,
        core_percent=33.0,
        last_kernel_at=datetime.now(UTC) + timedelta(hours=1),
    )
    where = (
        f'container="c",device_uuid="{CARD_A}",namespace="default",pod="p",'
        'vdevice_index="0",zone="vGPU"'
    )

    lines = text_of(Observation(containers=(sample,)))

    for name, value in {
        "hami_vgpu_memory_used_bytes": "7.0",
        "hami_vgpu_memory_limit_bytes": "9.0",
        "hami_container_device_memory_bytes": "7.0",
        "hami_container_device_utilization_ratio": "33.0",
        "hami_container_last_kernel_elapsed_seconds": "0.0",
        "hami_vgpu_memory_context_bytes": "1.0",
        "hami_vgpu_memory_module_bytes": "2.0",
        "hami_vgpu_memory_buffer_bytes": "4.0",
    }.items():
        assert f"{name}{{{where}}} {value}" in lines
