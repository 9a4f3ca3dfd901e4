"""Free CPU of the nodes follows the pods that come and go."""

from typing import Any

import pytest
from hami_scheduler.watch.host_cpu import HostCpu


@pytest.fixture
def free() -> dict[str, int | None]:
    return {}


@pytest.fixture
def hosts(free: dict[str, int | None]) -> HostCpu:
    return HostCpu(free.__setitem__)


def node(cpu: object = "8") -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": cpu}}}


def pod(cpu: str = "500m", *, on: str = "n", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"uid": "u"},
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": phase},
    }


def test_pods_take_of_what_is_allocatable(hosts: HostCpu, free: dict[str, int | None]) -> None:
    hosts.node_seen(node())
    hosts.pod_seen(pod())
    hosts.pod_seen(pod())

    assert free == {"n": 7500}


def test_a_pod_may_be_seen_before_its_node(hosts: HostCpu, free: dict[str, int | None]) -> None:
    hosts.pod_seen(pod("2"))
    assert free == {"n": None}
    hosts.node_seen(node())

    assert free == {"n": 6000}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_takes_nothing(
    hosts: HostCpu, free: dict[str, int | None], phase: str
) -> None:
    hosts.node_seen(node())
    hosts.pod_seen(pod())
    hosts.pod_seen(pod(phase=phase))
    hosts.pod_gone(pod())

    assert free == {"n": 8000}


def test_a_pod_that_waits_takes_nothing(hosts: HostCpu, free: dict[str, int | None]) -> None:
    hosts.node_seen(node())
    hosts.pod_seen(pod(on=""))

    assert free == {"n": 8000}


@pytest.mark.parametrize("cpu", [None, "eight", {}])
def test_a_node_whose_cpu_cannot_be_read_has_none_known(
    hosts: HostCpu, free: dict[str, int | None], cpu: object
) -> None:
    hosts.node_seen(node(cpu))
    hosts.pod_seen(pod("odd"))

    assert free == {"n": None}


def test_a_node_that_went_is_not_known(hosts: HostCpu, free: dict[str, int | None]) -> None:
    hosts.node_seen(node())
    hosts.node_gone(node())

    assert free == {"n": None}
