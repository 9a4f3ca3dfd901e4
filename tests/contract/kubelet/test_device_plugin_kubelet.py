"""The simulated kubelet behaves as a kubelet to a device plugin and to the cluster.

The same cases run on the emulated API server and, where KUBEBUILDER_ASSETS names one, on a real
kube-apiserver.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
import pytest_asyncio
from hamicommon.errors import NotFound
from hamicommon.k8s.client import open_kube_api

from tests.contract.kubelet.nodes import (
    Node,
    Plugin,
    alive,
    container,
    emulator_plan,
    open_node,
)
from tests.control_plane import control_plane
from tests.processes import running
from tests.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.native,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.fixture(scope="module", params=["emulator", "real"])
def kubeconfig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The administrator's kubeconfig of a running API server."""
    folder = tmp_path_factory.mktemp("api")
    with ExitStack() as stack:
        if request.param == "emulator":
            plan, path = emulator_plan(folder)
            stack.enter_context(running(plan, die_with_parent=True))
            yield path
        else:
            assets = request.getfixturevalue("kubernetes_assets")
            yield stack.enter_context(control_plane(folder, assets=assets)).kubeconfig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_node(
    kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Node]:
    """The node of all tests here."""
    # A short path: unix sockets lie below it.
    root = tmp_path_factory.mktemp("n")
    async with (
        open_kube_api(kubeconfig) as api,
        open_node("node-1", root, kubeconfig, api) as node,
    ):
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def node(one_node: Node) -> AsyncIterator[Node]:
    """The node, without pods before and after the test."""
    yield one_node
    await one_node.clear()


@pytest_asyncio.fixture(loop_scope="module")
async def plugin(node: Node, tmp_path: Path) -> AsyncIterator[Plugin]:
    """A registered plugin whose devices the node shows."""
    plugin = Plugin(tmp_path)

    async def is_shown() -> bool:
        return await node.devices() == ("10", "10")

    try:
        await plugin.register(node.device_plugins)
        await eventually(is_shown)
        yield plugin
    finally:
        await plugin.stop()
    await eventually(node.is_deserted)


async def until_phase(node: Node, name: str, phase: str) -> dict[str, Any]:
    async def is_reached() -> bool:
        return await node.phase(name) == phase

    await eventually(is_reached)
    return await node.pod(name)


async def until_gone(node: Node, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await node.pod(name)
        except NotFound:
            return True
        return False

    await eventually(is_gone)


async def test_capacity_appears_with_the_registration(node: Node, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, devices=7)

    async def is_shown() -> bool:
        return await node.devices() == ("7", "7")

    try:
        await plugin.register(node.device_plugins)
        await eventually(is_shown)
    finally:
        await plugin.stop()
    await eventually(node.is_deserted)


async def test_an_unknown_version_is_refused(node: Node, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)

    with pytest.raises(grpc.aio.AioRpcError, match="v1alpha1"):
        await plugin.register(node.device_plugins, version="v1alpha1")

    await plugin.stop()


async def test_calls_come_in_the_kubelets_order_and_the_container_gets_the_answer(
    node: Node, plugin: Plugin
) -> None:
    script = "cat /etc/hami/limits; echo; echo $NVIDIA_VISIBLE_DEVICES; exec sleep 1000"
    pod = await node.run("a", container(script=script, gpus=1))
    await until_phase(node, "a", "Running")

    await eventually(lambda: node.log(pod).count("\n") == 2)
    assert plugin.names() == ["preferred", "allocate", "pre_start"]
    ids = plugin.calls[1][1]
    assert plugin.calls[2][1] == ids
    assert node.log(pod).split() == [ids[0], ids[0]]
    assert not Path("/etc/hami/limits").exists()


async def test_pod_resources_knows_the_ids_at_pre_start_and_not_during_allocate(
    node: Node, plugin: Plugin
) -> None:
    seen: dict[str, Any] = {}

    async def during(call: str) -> None:
        listed = await node.pods_listed() or {}
        seen[call] = listed.get(f"a-{node.name}", {}).get("main", ())

    plugin.during = during
    await node.run("a", container(gpus=2))
    await until_phase(node, "a", "Running")

    assert seen["allocate"] == ()
    assert tuple(sorted(seen["pre_start"])) == plugin.calls[1][1]


async def test_an_init_containers_ids_are_allocated_again_to_the_main_container(
    node: Node, plugin: Plugin
) -> None:
    pod = await node.run(
        "a", container(gpus=1), initContainers=[container("first", "exit 0", gpus=1)]
    )
    await until_phase(node, "a", "Running")

    assert plugin.names() == ["preferred", "allocate", "allocate", "pre_start", "pre_start"]
    assert len({ids for name, ids in plugin.calls if name != "preferred"}) == 1
    assert await node.pods_listed() == {f"a-{node.name}": {"main": plugin.calls[1][1]}}
    checkpoint = orjson.loads((node.device_plugins / "kubelet_internal_checkpoint").read_bytes())
    entries = checkpoint["Data"]["PodDeviceEntries"]
    assert [(e["PodUID"], e["ContainerName"]) for e in entries] == [
        (pod["metadata"]["uid"], "first"),
        (pod["metadata"]["uid"], "main"),
    ]


async def test_a_failed_allocate_fails_the_pod_with_the_kubelets_message(
    node: Node, plugin: Plugin
) -> None:
    plugin.refuse.add("allocate")
    await node.run("a", container(gpus=1))
    pod = await until_phase(node, "a", "Failed")

    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert pod["status"]["message"] == (
        "Pod Allocate failed due to rpc error: code = FailedPrecondition desc = allocate refused, "
        "which is unexpected"
    )


async def test_more_ids_than_there_are_fail_the_pod(node: Node, plugin: Plugin) -> None:
    await node.run("a", container(gpus=11))
    pod = await until_phase(node, "a", "Failed")

    assert "Requested: 11, Available: 10" in pod["status"]["message"]
    assert plugin.calls == []


async def test_pre_start_comes_before_every_start_and_allocate_only_once(
    node: Node, plugin: Plugin
) -> None:
    await node.run("a", container(script="exit 1", gpus=1))

    async def is_restarted() -> bool:
        statuses = (await node.pod("a")).get("status", {}).get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0)) >= 2

    await eventually(is_restarted)
    assert plugin.names()[:2] == ["preferred", "allocate"]
    assert set(plugin.names()[2:]) == {"pre_start"}
    assert len(plugin.calls) >= 5


async def test_a_refused_pre_start_blocks_the_start_until_it_is_allowed(
    node: Node, plugin: Plugin
) -> None:
    plugin.refuse.add("pre_start")
    await node.run("a", container(gpus=1))

    async def is_blocked() -> bool:
        statuses = (await node.pod("a")).get("status", {}).get("containerStatuses") or [{}]
        waiting = statuses[0].get("state", {}).get("waiting", {})
        return "pre_start refused" in waiting.get("message", "")

    await eventually(is_blocked)
    plugin.refuse.clear()
    await until_phase(node, "a", "Running")


async def test_the_end_of_the_stream_leaves_nothing_allocatable(node: Node, plugin: Plugin) -> None:
    await plugin.stop()

    await eventually(node.is_deserted)
    assert await node.devices() == ("10", "0")


async def test_allocate_calls_of_a_burst_of_pods_never_overlap(node: Node, plugin: Plugin) -> None:
    async def during(call: str) -> None:
        await asyncio.sleep(0.01)

    plugin.during = during
    await asyncio.gather(*(node.run(f"p{i}", container(gpus=1)) for i in range(10)))
    for i in range(10):
        await until_phase(node, f"p{i}", "Running")

    assert not plugin.overlapped
    assert len({ids for name, ids in plugin.calls if name == "allocate"}) == 10


async def test_a_deleted_pods_process_ends_and_its_ids_are_free_again(
    node: Node, plugin: Plugin
) -> None:
    pod = await node.run("a", container(script="echo $$$$; exec sleep 1000", gpus=10))
    await until_phase(node, "a", "Running")

    await eventually(lambda: node.log(pod) != "")
    pid = node.host_pid(pod)
    assert alive(pid)

    await node.delete("a")
    await until_gone(node, "a")
    await node.run("b", container(gpus=10))

    assert not alive(pid)
    await until_phase(node, "b", "Running")


async def test_a_killed_kubelet_finds_its_containers_and_allocations_again(
    node: Node, plugin: Plugin
) -> None:
    pod = await node.run("a", container(script="echo $$$$; exec sleep 1000", gpus=1))
    await until_phase(node, "a", "Running")
    calls = list(plugin.calls)
    held = await node.pods_listed()
    pid = node.host_pid(pod)

    node.kill()
    await node.start()

    assert not (node.device_plugins / "nvidia-gpu.sock").exists()
    await plugin.register(node.device_plugins)

    async def is_shown() -> bool:
        return await node.devices() == ("10", "10")

    await eventually(is_shown)
    assert alive(pid)
    assert node.log(pod).count("\n") == 1

    async def is_listed() -> bool:
        return await node.pods_listed() == held

    await eventually(is_listed)
    assert plugin.calls == calls
    await node.delete("a")
    await until_gone(node, "a")


async def test_a_pod_deleted_while_the_kubelet_was_dead_is_stopped(
    node: Node, plugin: Plugin
) -> None:
    pod = await node.run("a", container(script="echo $$$$; exec sleep 1000", gpus=1))
    await until_phase(node, "a", "Running")

    await eventually(lambda: node.log(pod) != "")
    pid = node.host_pid(pod)
    node.kill()
    path = f"/api/v1/namespaces/default/pods/a-{node.name}"
    await node.api.delete(path, {"gracePeriodSeconds": 0})
    await node.start()

    await eventually(lambda: not alive(pid))


async def test_a_hundred_pods_at_once_all_run(node: Node, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, devices=100)

    async def is_shown() -> bool:
        return await node.devices() == ("100", "100")

    async def all_running() -> bool:
        query = {"fieldSelector": f"spec.nodeName={node.name}"}
        pods = (await node.api.get("/api/v1/pods", **query))["items"]
        return [pod["status"].get("phase") for pod in pods] == ["Running"] * 100

    try:
        await plugin.register(node.device_plugins)
        await eventually(is_shown)
        await asyncio.gather(*(node.run(f"p{i}", container(gpus=1)) for i in range(100)))
        await eventually(all_running)
    finally:
        await plugin.stop()
