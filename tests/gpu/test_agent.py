"""The node-agent's NVML adapter on a real card."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.card import BLOCKS, Card, Tenant
from tests.native.machine import FAKEGPU

if importlib.util.find_spec("hami_node_agent") is None:
    pytest.skip("the node-agent is not installed", allow_module_level=True)

from hami_node_agent.adapters.nvml.driver import NvmlDriver
from hamicommon.domain.ids import GpuUuid

from tests.waiting import wait

LOAD_S = 60
# As the agent does. This driver counts each sample of 200 ms as a whole for one of the processes.
CHECK_INTERVAL_S = 2


@pytest.fixture
def driver(card: Card) -> Iterator[NvmlDriver]:
    made = NvmlDriver(sysfs_root=Path("/sys"), fallback_memory_mib=0)
    made.start()
    yield made
    made.stop()


def test_the_card_is_known_by_uuid_name_and_memory(driver: NvmlDriver, card: Card) -> None:
    found = {one.uuid: one for one in driver.cards()}[GpuUuid(card.uuid)]
    assert (found.name, found.memory_mib) == (card.name, card.memory_mib)
    assert [links.uuid for links in driver.links()] == [one.uuid for one in driver.cards()]
    assert driver.probe() == {}
    assert not driver.is_outdated()


def test_no_event_comes_of_a_healthy_card(driver: NvmlDriver) -> None:
    driver.cards()
    driver.register_events()
    assert driver.wait_for_event() is None


def test_processes_have_their_memory_and_what_they_compute(
    driver: NvmlDriver, card: Card, tenants: list[Tenant]
) -> None:
    driver.cards()
    driver.processes()
    load = ["--seconds", str(LOAD_S), "--blocks", str(BLOCKS), "--kernel-us", "300"]
    pids = []
    for tenant in tenants:
        tenant.limit(cores=40)
        pids.append(tenant.start(FAKEGPU / "vgpu-load", *load).pid)
    shares: dict[int, float] = {}

    def both_compute() -> bool:
        found = driver.processes()[card.uuid]
        assert found.busy_percent is not None
        shares.clear()
        shares.update(found.busy_percent)
        return all(found.held_mib.get(pid) for pid in pids) and set(pids) <= set(shares)

    wait(both_compute, "both programs to compute", every_s=CHECK_INTERVAL_S)
    assert sum(shares.values()) <= 101
    [sample] = [one for one in driver.samples() if one.uuid == card.uuid]
    assert (sample.memory_used_bytes or 0) > 100 << 20
    assert None not in (sample.gpu_percent, sample.power_watts)
