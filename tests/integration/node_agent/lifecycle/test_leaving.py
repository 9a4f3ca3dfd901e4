"""A pod has left when the API server, the kubelet and its cgroup no longer have it; its files
are removed last."""

import asyncio

import pytest

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import (
    CARDS,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
    mounts_of,
)
from tests.waiting import eventually

pytestmark = pytest.mark.native

A_0 = f"{CARDS[0]}-0"


async def test_a_pod_that_left_is_reported_and_its_files_are_removed(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[uid] = "a"
    answer = await kubelet.allocate(uid, "main", A_0)
    await eventually(lambda: control.reports_of("allocated"))
    control.live.clear()

    await api_pods.delete("a")
    # Nothing is to happen, which is no event: several of the agent's looks go by.
    for _ in range(5):
        assert control.reports_of("gone") == []
        await asyncio.sleep(0.1)
    kubelet.forget(uid)

    [report] = await eventually(lambda: control.reports_of("gone"))
    assert report.pod_uid == uid
    mounts = mounts_of(answer)
    await eventually(lambda: not mounts["/etc/hami"].exists())
    await eventually(lambda: not mounts["/usr/local/vgpu"].exists())


async def test_files_of_a_pod_that_left_stay_while_another_holds_its_answer(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await api_pods.create("a", "b")
    uid, other = api_pods.uids["a"], api_pods.uids["b"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[other] = "b"
    answer = await kubelet.allocate(other, "main", A_0)
    await eventually(lambda: control.reports_of("allocated"))
    control.live.clear()

    await api_pods.delete("a")
    await eventually(lambda: control.reports_of("gone"))
    await control.announce(grant(other, token=2).model_copy(update={"pod_name": "b"}))
    await kubelet.prestart(A_0)

    assert f"device {CARDS[0]} memory_bytes 4294967296 core_percent 30" in limits_of(answer)
    assert all(path.exists() for path in mounts_of(answer).values())


async def test_a_pod_deleted_by_force_has_not_left_while_its_process_lives(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[uid] = "a"
    await kubelet.allocate(uid, "main", A_0)
    await eventually(lambda: control.reports_of("allocated"))
    cgroup = machine.cgroups / "kubepods" / "burstable" / f"pod{uid}"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.events").write_text("populated 1\n")

    await api_pods.delete("a")
    kubelet.forget(uid)
    # As above: no event to wait for.
    for _ in range(10):
        assert control.reports_of("gone") == []
        await asyncio.sleep(0.1)
    (cgroup / "cgroup.events").write_text("populated 0\n")

    [report] = await eventually(lambda: control.reports_of("gone"))
    assert report.pod_uid == uid
