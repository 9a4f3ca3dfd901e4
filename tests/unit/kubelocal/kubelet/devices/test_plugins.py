"""Calls to a device plugin over its socket, and their result when it disappears."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.k8s.types import Json
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc
from kubelocal.kubelet import sockets
from kubelocal.kubelet.admission import PodAdmission
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.plugins import PluginClient
from kubelocal.kubelet.devices.state import AdmissionError, DeviceCounts, PluginError, PluginOptions

from tests.unit.kubelocal.kubelet.fake_plugin import FakePlugin
from tests.unit.kubelocal.kubelet.pod_builders import container, pod
from tests.waiting import PATIENCE_S

GPU = "nvidia.com/gpu"
CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"


class SlowPlugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Answers nothing but its options and devices until `release`; its stream ends on `leave`."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.leave = asyncio.Event()
        self.release = asyncio.Event()
        self.slow = {"PreStartContainer", "Allocate", "GetPreferredAllocation"}

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return api.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield api.ListAndWatchResponse(devices=[api.Device(ID="gpu-0", health="Healthy")])
        await self.leave.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        await self._answer("GetPreferredAllocation")
        return api.PreferredAllocationResponse()

    async def Allocate(self, request: Any, context: Any) -> Any:
        await self._answer("Allocate")
        return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()])

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        await self._answer("PreStartContainer")
        return api.PreStartContainerResponse()

    async def _answer(self, name: str) -> None:
        if name in self.slow:
            self.called.set()
            await self.release.wait()


@asynccontextmanager
async def serve_plugin(plugin: SlowPlugin, folder: Path) -> AsyncIterator[PluginClient]:
    server = grpc.aio.server()
    add: Any = deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server
    add(plugin, server)
    server.add_insecure_port(f"unix:{folder / 'plugin.sock'}")
    await server.start()
    client = PluginClient(folder / "plugin.sock", allocate_timeout_s=PATIENCE_S)
    try:
        yield client
    finally:
        plugin.release.set()
        await client.close()
        await server.stop(grace=None)


CALLS: dict[str, Callable[[PluginClient], Awaitable[object]]] = {
    "preferred_ids": lambda client: client.preferred_ids(["gpu-0"], [], 1),
    "allocate": lambda client: client.allocate(["gpu-0"]),
    "pre_start": lambda client: client.pre_start(["gpu-0"]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_runs_when_the_connection_is_closed_has_failed(
    name: str, tmp_path: Path
) -> None:
    plugin = SlowPlugin()
    async with asyncio.timeout(PATIENCE_S), serve_plugin(plugin, tmp_path) as client:
        call = asyncio.ensure_future(CALLS[name](client))
        await plugin.called.wait()
        await client.close()

        with pytest.raises(PluginError, match=CLOSING):
            await call


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_after_the_connection_was_closed_fails(name: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), serve_plugin(SlowPlugin(), tmp_path) as client:
        await client.close()

        with pytest.raises(PluginError, match=CLOSING):
            await CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
async def test_a_caller_that_gives_up_is_cancelled(name: str, tmp_path: Path) -> None:
    plugin = SlowPlugin()
    async with asyncio.timeout(PATIENCE_S), serve_plugin(plugin, tmp_path) as client:
        call = asyncio.ensure_future(CALLS[name](client))
        await plugin.called.wait()
        call.cancel()

        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_start_that_is_asked_for_as_the_plugin_leaves_is_refused_not_lost(
    tmp_path: Path,
) -> None:
    plugin = SlowPlugin()
    plugin.slow = {"PreStartContainer"}
    listed = asyncio.Event()
    allocator = DeviceAllocator(
        checkpoint_file=tmp_path / "kubelet_internal_checkpoint",
        chance=random.Random(1),
        on_counts=listed.set,
        active_pods=lambda: None,
    )
    async with asyncio.timeout(PATIENCE_S), serve_plugin(plugin, tmp_path) as client:
        serving = asyncio.create_task(allocator.serve_plugin(GPU, client))
        await listed.wait()
        wanted = pod(container(gpus=1))
        await allocator.allocate(wanted, wanted["spec"]["containers"][0])
        start = asyncio.create_task(allocator.pre_start(wanted, wanted["spec"]["containers"][0]))
        await plugin.called.wait()
        plugin.leave.set()
        await serving

        with pytest.raises(PluginError, match=CLOSING):
            await start


# --- order and effect of the calls to a device plugin


class Node:
    """A device allocator with the pods that it takes for active."""

    def __init__(self, folder: Path) -> None:
        self.active: set[str] | None = set()
        """None until it is known."""
        self.changed = asyncio.Event()
        self.allocator = DeviceAllocator(
            checkpoint_file=folder / "kubelet_internal_checkpoint",
            chance=random.Random(1),
            on_counts=self.changed.set,
            active_pods=lambda: self.active,
        )

    @asynccontextmanager
    async def serving(self, plugin: FakePlugin) -> AsyncIterator[FakePlugin]:
        task = asyncio.create_task(self.allocator.serve_plugin(GPU, plugin))
        async with asyncio.timeout(PATIENCE_S):
            await self.changed.wait()
        self.changed.clear()
        yield plugin
        plugin.gone.set()
        await task

    async def allocate(self, wanted: Json) -> None:
        self.active.add(wanted["metadata"]["uid"])
        for spec in [*wanted["spec"]["initContainers"], *wanted["spec"]["containers"]]:
            await self.allocator.allocate(wanted, spec)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_container_that_asks_for_no_device_starts_without_the_plugin(node: Node) -> None:
    async with node.serving(FakePlugin()) as plugin:
        await node.allocate(wanted := pod(container(limits={"nvidia.com/gpu": "0"})))
        await node.allocator.pre_start(wanted, wanted["spec"]["containers"][0])

    assert plugin.calls == []


async def test_the_plugin_is_asked_what_it_prefers_and_then_given_it(node: Node) -> None:
    async with node.serving(FakePlugin(prefer=["gpu-2"])) as plugin:
        await node.allocate(pod(container(gpus=1)))

    assert plugin.calls == [("preferred_ids", ()), ("allocate", ("gpu-2",))]


async def test_a_plugin_without_preference_is_not_asked(node: Node) -> None:
    async with node.serving(FakePlugin(wanted=PluginOptions())) as plugin:
        await node.allocate(pod(container(gpus=1)))
        await node.allocator.pre_start(pod(), container(gpus=1))

    assert plugin.names() == ["allocate"]


async def test_every_container_has_an_allocate_of_its_own(node: Node) -> None:
    async with node.serving(FakePlugin()) as plugin:
        await node.allocate(pod(container("a", gpus=1), container("none"), container("b", gpus=2)))

    assert plugin.names() == ["preferred_ids", "allocate", "preferred_ids", "allocate"]


async def test_an_init_containers_ids_are_allocated_again_without_preference(node: Node) -> None:
    async with node.serving(FakePlugin()) as plugin:
        await node.allocate(pod(container(gpus=1), init=(container("init", gpus=1),)))

    assert plugin.names() == ["preferred_ids", "allocate", "allocate"]
    assert plugin.calls[1][1] == plugin.calls[2][1]


async def test_pod_resources_lists_the_regular_container_and_the_checkpoint_both(
    node: Node, tmp_path: Path
) -> None:
    wanted = pod(container(gpus=1), init=(container("init", gpus=1),))
    async with node.serving(FakePlugin(prefer=["gpu-3"])):
        before = sockets.snapshot([wanted], node.allocator.book)
        await node.allocate(wanted)
        after = sockets.snapshot([wanted], node.allocator.book)

    assert before[0].containers == (("main", ()),)
    assert after[0].containers == (("main", ((GPU, ("gpu-3",)),)),)
    written = (tmp_path / "kubelet_internal_checkpoint").read_text()
    assert '"ContainerName":"init"' in written
    assert '"ContainerName":"main"' in written


async def test_before_every_start_the_plugin_is_called_and_never_allocates_again(
    node: Node,
) -> None:
    wanted = pod(container(gpus=1))
    async with node.serving(FakePlugin()) as plugin:
        await node.allocate(wanted)
        first = await node.allocator.pre_start(wanted, wanted["spec"]["containers"][0])
        second = await node.allocator.pre_start(wanted, wanted["spec"]["containers"][0])

    assert plugin.names() == ["preferred_ids", "allocate", "pre_start", "pre_start"]
    assert first == second
    assert first.envs["IDS"] == plugin.calls[1][1][0]


async def test_a_refused_start_has_the_plugins_reason(node: Node) -> None:
    wanted = pod(container(gpus=1))
    async with node.serving(FakePlugin(refuse={"pre_start"})):
        await node.allocate(wanted)
        with pytest.raises(PluginError, match="pre_start refused"):
            await node.allocator.pre_start(wanted, wanted["spec"]["containers"][0])


@pytest.mark.parametrize("call", ["allocate", "preferred_ids"])
async def test_a_failed_allocation_holds_nothing(node: Node, call: str) -> None:
    async with node.serving(FakePlugin(count=1, refuse={call})) as plugin:
        with pytest.raises(AdmissionError, match=f"{call} refused"):
            await node.allocate(pod(container(gpus=1)))
        plugin.refuse.clear()
        await node.allocate(pod(container(gpus=1), uid="uid-2"))


async def test_ids_of_an_ended_pod_are_taken_back_by_the_next_allocation(node: Node) -> None:
    async with node.serving(FakePlugin(count=1)):
        await node.allocate(pod(container(gpus=1), uid="uid-1"))
        node.active.clear()
        await node.allocate(pod(container(gpus=1), uid="uid-2"))

    assert [a.pod_uid for a in node.allocator.book.allocations()] == ["uid-2"]


async def test_a_lost_plugin_leaves_nothing_allocatable_and_is_closed(node: Node) -> None:
    async with node.serving(FakePlugin()) as plugin:
        pass

    assert node.allocator.book.counts()[GPU] == DeviceCounts(capacity=4, allocatable=0)
    assert plugin.closed


async def test_a_new_registration_replaces_the_old_one(node: Node) -> None:
    async with node.serving(FakePlugin()) as old, node.serving(FakePlugin(count=2)) as new:
        old.gone.set()
        await node.allocate(pod(container(gpus=1)))
        assert node.allocator.book.counts()[GPU] == DeviceCounts(capacity=2, allocatable=2)

    assert (old.names(), new.names()) == ([], ["preferred_ids", "allocate"])


async def test_a_restarted_kubelet_knows_the_allocations(node: Node, tmp_path: Path) -> None:
    wanted = pod(container(gpus=1))
    async with node.serving(FakePlugin()):
        await node.allocate(wanted)
    again = Node(tmp_path)

    again.allocator.restore()

    await again.allocate(wanted)
    assert [a.ids for a in again.allocator.book.allocations()] == [
        a.ids for a in node.allocator.book.allocations()
    ]
    assert again.allocator.book.counts()[GPU] == DeviceCounts(capacity=0, allocatable=0)


async def test_a_restarted_kubelet_takes_nothing_back_before_it_knows_its_pods(
    node: Node, tmp_path: Path
) -> None:
    """PodResources is served before the first list of pods is complete."""
    async with node.serving(FakePlugin()):
        await node.allocate(pod(container(gpus=1)))
    again = Node(tmp_path)
    again.active = None
    again.allocator.restore()

    again.allocator.collect()

    assert [a.ids for a in again.allocator.book.allocations()] == [
        a.ids for a in node.allocator.book.allocations()
    ]


async def test_admission_fails_with_the_kubelets_sentence(node: Node) -> None:
    admission = PodAdmission(node.allocator, allocatable=dict, labels=dict)
    async with node.serving(FakePlugin(refuse={"allocate"})):
        rejection = await admission.admit(pod(container(gpus=1)), [])

    assert rejection is not None
    assert rejection.reason == "UnexpectedAdmissionError"
    assert rejection.message == (
        "Allocate failed due to rpc error: code = Unknown desc = allocate refused, "
        "which is unexpected"
    )


async def test_a_pod_that_holds_devices_is_admitted_while_the_plugin_is_away(
    node: Node, tmp_path: Path
) -> None:
    wanted = pod(container(gpus=2))
    async with node.serving(FakePlugin()):
        await node.allocate(wanted)
    admission = PodAdmission(
        node.allocator, allocatable=lambda: {GPU: "0", "pods": "10"}, labels=dict
    )

    assert await admission.admit(wanted, []) is None
