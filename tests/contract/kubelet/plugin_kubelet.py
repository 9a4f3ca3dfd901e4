"""A kubelet's sockets for tests of single plugins: who registered, and calls to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc
from kubelocal.kubelet.sockets import serve_registration

from tests.waiting import PATIENCE_S


class PluginKubelet:
    """Registration, and one kept ListAndWatch stream."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets
        self.registered: list[tuple[str, str]] = []
        """(resource, endpoint) in order."""
        self.lists: list[dict[str, str]] = []
        """Health by id, one for each message of the stream."""
        self.stream_ended = asyncio.Event()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start like a kubelet, which first removes all sockets in its directory."""
        for socket in self.sockets.glob("*.sock"):
            socket.unlink()
        await self._stack.enter_async_context(
            serve_registration(
                self.sockets / "kubelet.sock",
                lambda resource, endpoint: self.registered.append((resource, endpoint)),
            )
        )

    async def stop(self) -> None:
        """Stop serving; the socket goes."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator[Any]:
        """The plugin that registered last."""
        socket = self.sockets / self.registered[-1][1]
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub: Any = deviceplugin_pb2_grpc.DevicePluginStub
            yield stub(channel)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Follows ListAndWatch during the block."""
        self.stream_ended = asyncio.Event()
        task = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        try:
            async with self.plugin() as plugin:
                async for answer in plugin.ListAndWatch(api.Empty()):
                    self.lists.append({device.ID: device.health for device in answer.devices})
        except grpc.aio.AioRpcError:
            pass
        finally:
            self.stream_ended.set()

    async def allocate(self, *ids: str) -> api.ContainerAllocateResponse:
        """One container's Allocate."""
        wanted = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        async with self.plugin() as plugin:
            answer = await plugin.Allocate(wanted, timeout=PATIENCE_S)
        return answer.container_responses[0]
