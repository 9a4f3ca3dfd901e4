"""Calls to a device plugin over its socket, and what becomes of them when it goes away."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.plugins import PluginClient
from kubelocal.kubelet.devices.state import PluginError

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
async def served(plugin: SlowPlugin, folder: Path) -> AsyncIterator[PluginClient]:
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
    "preferred": lambda client: client.preferred(["gpu-0"], [], 1),
    "allocate": lambda client: client.allocate(["gpu-0"]),
    "pre_start": lambda client: client.pre_start(["gpu-0"]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_runs_when_the_connection_is_closed_has_failed(
    name: str, tmp_path: Path
) -> None:
    plugin = SlowPlugin()
    async with asyncio.timeout(PATIENCE_S), served(plugin, tmp_path) as client:
        call = asyncio.ensure_future(CALLS[name](client))
        await plugin.called.wait()
        await client.close()

        with pytest.raises(PluginError, match=CLOSING):
            await call


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_after_the_connection_was_closed_fails(name: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), served(SlowPlugin(), tmp_path) as client:
        await client.close()

        with pytest.raises(PluginError, match=CLOSING):
            await CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
async def test_a_caller_that_gives_up_is_cancelled(name: str, tmp_path: Path) -> None:
    plugin = SlowPlugin()
    async with asyncio.timeout(PATIENCE_S), served(plugin, tmp_path) as client:
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
    async with asyncio.timeout(PATIENCE_S), served(plugin, tmp_path) as client:
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
