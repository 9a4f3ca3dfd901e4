"""One registered device plugin, spoken to over its unix socket.

Implements `device_allocator.DevicePlugin`. Kubernetes device-plugin v1beta1, service DevicePlugin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
from hamicommon.kubelet_api._generated import deviceplugin_pb2, deviceplugin_pb2_grpc

from kubelocal.kubelet.adapters import rpc_errors
from kubelocal.kubelet.devices import allocate_response
from kubelocal.kubelet.devices.types import AllocateAnswer, Device, PluginError, PluginOptions

# The kubelet's own figure for dialling a plugin.
DIAL_TIMEOUT_S = 10.0
# The kubelet waits without end for these two; we bound them, far above what a plugin needs.
PREFERRED_TIMEOUT_S = 30.0
# The kubelet's KubeletPreStartContainerRPCTimeoutInSecs.
PRE_START_TIMEOUT_S = 30.0

# The end of the stream may be read here before an answer that the plugin sent earlier; Go reads
# both in order.
ANSWERS_ON_THE_WAY_S = 0.5

_CHANNEL_OPTIONS = (
    # Go servers refuse the socket's path as an authority.
    ("grpc.default_authority", "localhost"),
    # A plugin that comes back on the same path must not inherit the back-off of its last life.
    ("grpc.use_local_subchannel_pool", 1),
)

# What a call fails with whose connection is closed under it; the text is that of gRPC in Go.
_CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"

_messages: Any = deviceplugin_pb2


class PluginClient:
    """Calls to one plugin; `close` it when its stream has ended."""

    def __init__(self, socket: Path, *, allocate_timeout_s: float) -> None:
        self._socket = socket
        self._allocate_timeout_s = allocate_timeout_s
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        stub: Any = deviceplugin_pb2_grpc.DevicePluginStub
        self._stub = stub(self._channel)
        self._closed = False

    async def options(self) -> PluginOptions:
        """What the plugin wants to be called for.

        Raises: PluginError when the plugin can't be reached.
        """
        try:
            answer = await self._stub.GetDevicePluginOptions(
                _messages.Empty(), timeout=DIAL_TIMEOUT_S, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as exc:
            raise PluginError(rpc_errors.describe(exc)) from exc
        return PluginOptions(
            pre_start_required=answer.pre_start_required,
            preferred_allocation=answer.get_preferred_allocation_available,
        )

    async def device_lists(self) -> AsyncIterator[list[Device]]:
        """Every list that the ListAndWatch stream sends.

        Raises: PluginError when the stream breaks; a stream that the plugin ends just ends.
        """
        try:
            async for message in self._stub.ListAndWatch(_messages.Empty()):
                yield [
                    Device(
                        id=device.ID,
                        healthy=device.health == "Healthy",
                        numa_nodes=tuple(node.ID for node in device.topology.nodes),
                    )
                    for device in message.devices
                ]
        except grpc.aio.AioRpcError as exc:
            raise PluginError(rpc_errors.describe(exc)) from exc

    async def preferred(
        self, available: Iterable[str], must_include: Iterable[str], size: int
    ) -> list[str]:
        """The ids that the plugin would like to be chosen.

        Raises: PluginError.
        """
        request = _messages.PreferredAllocationRequest(
            container_requests=[
                _messages.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        answer = await self._call(
            self._stub.GetPreferredAllocation,
            request,
            PREFERRED_TIMEOUT_S,
            failed="device plugin GetPreferredAllocation rpc failed with err: ",
        )
        responses = answer.container_responses
        return list(responses[0].deviceIDs) if responses else []

    async def allocate(self, ids: Iterable[str]) -> AllocateAnswer:
        """Gives the plugin the ids of a container; the answer is what the container is given.

        Raises: PluginError.
        """
        request = _messages.AllocateRequest(
            container_requests=[_messages.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await self._call(self._stub.Allocate, request, self._allocate_timeout_s)
        if not answer.container_responses:
            raise PluginError(f"no containers return in allocation response {answer}")
        return allocate_response.from_message(answer.container_responses[0])

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Announces to the plugin that the container holding these ids is about to start.

        Raises: PluginError.
        """
        request = _messages.PreStartContainerRequest(devices_ids=ids)
        await self._call(
            self._stub.PreStartContainer,
            request,
            PRE_START_TIMEOUT_S,
            failed="device plugin PreStartContainer rpc failed with err: ",
        )

    async def close(self) -> None:
        """Closes the connection; calls that run fail with PluginError, as the kubelet's do."""
        self._closed = True
        await self._channel.close(ANSWERS_ON_THE_WAY_S)

    async def _call(
        self,
        method: Callable[..., Awaitable[Any]],
        request: object,
        timeout_s: float,
        *,
        failed: str = "",
    ) -> Any:
        """The answer. Raises: PluginError, its text after `failed`."""
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise PluginError(f"{failed}{rpc_errors.describe(exc)}") from exc
        except (asyncio.CancelledError, grpc.aio.UsageError) as exc:
            # Closing cancels calls that run. Unless the caller was cancelled itself, nobody would
            # see that: its task would end without an error, and the pod wait for ever.
            if not self._closed or _is_being_cancelled():
                raise
            raise PluginError(f"{failed}{_CLOSING}") from exc


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
