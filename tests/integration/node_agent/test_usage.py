"""Samples of regions and cards, on the bus and at /metrics."""

from pathlib import Path

import pytest

from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import CARDS, AgentProcess, Kubelet, mounts_of, until
from tests.unit.node_agent.test_region_reader import v1_file

pytestmark = [pytest.mark.integration, pytest.mark.native]


async def test_a_containers_region_is_sampled_for_bus_and_prometheus(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", f"{CARDS[0]}-0")
    await kubelet.prestart(f"{CARDS[0]}-0")
    name = Path(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
    v1_file(mounts_of(answer)["/usr/local/vgpu"] / name)

    usage = await until(
        lambda: next((u for u in control.usages if u.containers and u.devices), None)
    )

    [sample] = usage.containers
    assert (sample.pod_uid, sample.pod, sample.container) == ("a", "name-of-a", "main")
    assert (sample.uuid, sample.memory_used_bytes, sample.core_percent) == (CARDS[0], 6, 11.0)
    assert [device.uuid for device in usage.devices] == list(CARDS)
    status, text = agent.get("/metrics")
    assert status == 200
    assert "hami_vgpu_memory_limit_bytes{" in text
    assert f'device_uuid="{CARDS[1]}"' in text
