"""Allocate and PreStartContainer over the kubelet's sockets, with grants from the bus or signed."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.grants.signing import load_private_key, new_key_pair, sign
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
    mounts_of,
)
from tests.unit.node_agent.library_file import MARKED, a_library
from tests.waiting import eventually

pytestmark = pytest.mark.native


A_0, A_1, B_0, B_1 = f"{CARDS[0]}-0", f"{CARDS[0]}-1", f"{CARDS[1]}-0", f"{CARDS[1]}-1"
LIMITS_4096_30 = (
    "hami-limits 1\npolicy default\noversubscribe 0\n"
    f"device {CARDS[0]} memory_bytes 4294967296 core_percent 30\n"
    "region {region}\n"
)


def limits_4096_30(answer: api.ContainerAllocateResponse) -> str:
    """The limits file; the environment names the same region, for HAMi's library."""
    return LIMITS_4096_30.format(region=answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"])


async def test_a_granted_container_gets_its_slice_and_starts(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))

    answer = await kubelet.allocate("a", "main", A_0)

    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARDS[0]
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert limits_of(answer) == limits_4096_30(answer)
    mounts = mounts_of(answer)
    assert mounts["/usr/local/vgpu/libvgpu.so"].read_bytes() == a_library(mark=MARKED)
    assert mounts["/etc/ld.so.preload"].read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert mounts["/usr/local/vgpu"].is_dir()
    assert answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == (
        f"/usr/local/vgpu/{mounts['/etc/hami'].name}.cache"
    )
    await eventually(lambda: control.reports_of("allocated"))
    await kubelet.prestart(A_0)
    await kubelet.prestart(A_0)


async def test_the_cards_of_the_grant_are_preferred(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a", container(share(1))))
    await until_known(kubelet, 1)

    assert await kubelet.prefer(1, A_0, B_0, B_1) == [[B_0]]
    assert await kubelet.prefer(2, A_0, B_0, B_1) == []


async def until_known(kubelet: Kubelet, size: int) -> None:
    """Until the announcement has arrived."""
    for _ in range(200):
        if await kubelet.prefer(size, A_0, B_0):
            return
    raise AssertionError("the grant did not arrive")


async def test_a_pod_is_reported_when_all_its_containers_have_their_answer(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(
        grant(
            "a",
            container(share(0, 1024, 10), name="prepare", index=0, role="init"),
            container(share(0, 2048, 20), name="one", index=1),
            container(name="without", index=2),
            container(share(1, 4096, 40), name="two", index=3),
        )
    )

    prepare = await kubelet.allocate("a", "prepare", A_0)
    one = await kubelet.allocate("a", "one", A_0)
    assert control.reports_of("allocated") == []
    two = await kubelet.allocate("a", "two", B_0)

    assert "memory_bytes 1073741824 core_percent 10" in limits_of(prepare)
    assert "memory_bytes 2147483648 core_percent 20" in limits_of(one)
    assert f"device {CARDS[1]} memory_bytes 4294967296" in limits_of(two)
    [report] = await eventually(lambda: control.reports_of("allocated"))
    assert report.allocation_id == "allocation-of-a"
    await kubelet.prestart(A_0)
    await kubelet.prestart(B_0)


async def test_without_a_grant_the_kubelet_gets_the_way_out(
    agent: AgentProcess, kubelet: Kubelet
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.allocate("unscheduled", "main", A_0)

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "set spec.schedulerName" in (refused.value.details() or "")


async def test_a_withdrawn_grant_is_not_handed_out(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    item = grant("a")
    await control.announce(item)
    await control.withdraw(item)
    control.answers_snapshots = False
    await control.until_all_is_consumed()

    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.allocate("a", "main", A_0)


async def test_a_grant_that_was_never_announced_is_found_in_the_snapshot(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    control.keep(grant("a"), "bound")

    answer = await kubelet.allocate("a", "main", A_0)

    assert limits_of(answer) == limits_4096_30(answer)


@pytest.mark.parametrize("ids", [(), (A_0, A_0)], ids=["none", "twice the same"])
async def test_a_call_without_distinct_ids_is_refused(
    agent: AgentProcess, kubelet: Kubelet, ids: tuple[str, ...]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.allocate("a", "main", *ids)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("has_checkpoint", [True, False], ids=["checkpoint", "PodResources"])
async def test_pods_admitted_in_another_order_do_not_start_and_are_to_be_ended(
    api_pods: ApiPods,
    agent: AgentProcess,
    kubelet: Kubelet,
    control: Control,
    has_checkpoint: bool,
) -> None:
    kubelet.has_checkpoint = has_checkpoint
    await api_pods.create("a", "b")
    a, b = api_pods.uids["a"], api_pods.uids["b"]
    small = grant(a, container(share(0, 1024, 10)), token=1)
    big = grant(b, container(share(1, 8192, 50)), token=2)
    await control.announce(small.model_copy(update={"pod_name": "a"}))
    await control.announce(big.model_copy(update={"pod_name": "b"}))
    await until_known(kubelet, 1)
    kubelet.pods.update({a: "a", b: "b"})

    for_b = await kubelet.allocate(b, "main", A_0)
    await kubelet.allocate(a, "main", B_0)
    for ids in (A_0, B_0):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.prestart(ids)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "granted to another container" in (refused.value.details() or "")

    assert f"memory_bytes {1024 << 20} " in limits_of(for_b)
    reports = await eventually(
        lambda: len(found := control.reports_of("start-refused")) == 2 and found
    )
    assert {report.pod_uid: report.allocation_id for report in reports} == {
        a: f"allocation-of-{a}",
        b: f"allocation-of-{b}",
    }
    assert any("the scheduler evicts the pod" in text for text in await api_pods.events("a"))


async def test_a_pod_that_bypassed_the_scheduler_and_took_an_answer_does_not_start(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await api_pods.create("bypassing")
    uid = api_pods.uids["bypassing"]
    kubelet.pods[uid] = "bypassing"
    await control.announce(grant("a"))

    await kubelet.allocate(uid, "main", A_0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.prestart(A_0)
    with pytest.raises(grpc.aio.AioRpcError) as left_over:
        await kubelet.allocate("a", "main", A_1)

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "without a grant" in (refused.value.details() or "")
    [report] = await eventually(lambda: control.reports_of("start-refused"))
    assert (report.pod_uid, report.pod_name, report.allocation_id) == (uid, "bypassing", "")
    # Its controller makes another pod, which gets its own grant and answer.
    assert left_over.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_answer_of_a_binding_that_failed_is_none_of_the_next_one(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    """A pod that bypassed the scheduler took it, and has its directory mounted, if anything."""
    failed = grant("a", token=1)
    await control.announce(failed)
    for_other = await kubelet.allocate("bypassing", "main", A_0)
    await control.withdraw(failed)
    again = grant("a", token=2).model_copy(update={"allocation_id": "second-attempt"})
    await control.announce(again)
    await control.until_all_is_consumed()

    for_a = await kubelet.allocate("a", "main", A_1)
    await kubelet.prestart(A_1)

    assert mounts_of(for_a)["/usr/local/vgpu"] != mounts_of(for_other)["/usr/local/vgpu"]


async def test_limits_that_were_lost_or_changed_are_put_right_before_a_start(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    file = mounts_of(answer)["/etc/hami"] / "limits"
    file.unlink()
    file.parent.rmdir()
    folder = mounts_of(answer)["/usr/local/vgpu"]
    made = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    shutil.rmtree(folder)

    await kubelet.prestart(A_0)

    assert limits_of(answer) == limits_4096_30(answer)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == made
    assert 0o666 in made.values()


async def test_the_kubelets_state_being_away_keeps_the_container_waiting(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)
    machine.checkpoint.write_bytes(b"damaged")
    machine.pod_resources.unlink()

    with pytest.raises(grpc.aio.AioRpcError) as waiting:
        await kubelet.prestart(A_0)
    kubelet.write_checkpoint()
    await kubelet.prestart(A_0)

    assert waiting.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "kubelet's checkpoint and PodResources are unavailable" in (
        waiting.value.details() or ""
    )


FORGED = ["another key", "another pod", "another node", "expired"]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_signed_grant_that_is_not_good_for_this_pod_is_refused(
    machine: Machine, kubelet: Kubelet, api_pods: ApiPods, folder: Path, forged: str
) -> None:
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(new_key_pair()[0] if forged == "another key" else private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    machine.nats_url = "nats://127.0.0.1:9"
    await api_pods.create("a")
    change: dict[str, Any] = {
        "another key": {},
        "another pod": {"pod_uid": "somebody-else"},
        "another node": {"node": "node-2"},
        "expired": {"expires_at": datetime.now(UTC) - timedelta(seconds=1)},
    }[forged]
    bad = grant(api_pods.uids["a"]).model_copy(update=change)
    text = sign(bad, load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    with AgentProcess(machine) as agent:
        await agent.ready()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(api_pods.uids["a"], "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus unavailable" in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("ledger", "accepted"), [("answers", False), ("can't be read", True), ("is silent", True)]
)
async def test_a_signed_grant_counts_only_while_the_ledger_cannot_be_asked(
    machine: Machine,
    kubelet: Kubelet,
    control: Control,
    api_pods: ApiPods,
    folder: Path,
    ledger: str,
    accepted: bool,
) -> None:
    """The grant ended while its binder was held up; the pod came all the same (SAFE-3)."""
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    control.complete = ledger != "can't be read"
    control.answers_snapshots = ledger != "is silent"
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    text = sign(grant(uid), load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    with AgentProcess(machine) as agent:
        await agent.ready()
        if accepted:
            assert f"device {CARDS[0]} " in limits_of(await kubelet.allocate(uid, "main", A_0))
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(uid, "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus connected" in (refused.value.details() or "")
