"""Client of a registered device plugin on its unix socket, and its answers.

Kubernetes device-plugin v1beta1, service DevicePlugin; errors have the text of a kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from hamicommon.errors import InvalidRequest
from hamicommon.kubelet_api._generated import deviceplugin_pb2, deviceplugin_pb2_grpc

from kubelocal.kubelet.devices.state import (
    AllocateAnswer,
    Device,
    DeviceNode,
    Mount,
    PluginError,
    PluginOptions,
)

# Messages are generated at run time, so they have no static types.
_messages: Any = deviceplugin_pb2


def from_message(message: Any) -> AllocateAnswer:
    """Decode an answer, keeping its serialised form."""
    return AllocateAnswer(
        raw=message.SerializeToString(deterministic=True),
        envs=dict(message.envs),
        mounts=tuple(
            Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in message.mounts
        ),
        nodes=tuple(
            DeviceNode(
                container_path=d.container_path, host_path=d.host_path, permissions=d.permissions
            )
            for d in message.devices
        ),
        annotations=dict(message.annotations),
        cdi_devices=tuple(device.name for device in message.cdi_devices),
    )


def decode_answer(content: bytes) -> AllocateAnswer:
    """Decode a checkpoint's AllocResp.

    Raises: InvalidRequest if the bytes are not a ContainerAllocateResponse.
    """
    try:
        return from_message(_messages.ContainerAllocateResponse.FromString(content))
    except DecodeError as exc:
        raise InvalidRequest(f"AllocResp: not a ContainerAllocateResponse: {exc}") from exc


def merge_answers(answers: list[AllocateAnswer]) -> AllocateAnswer:
    """Merge a container's answers for several resources: the first of equal names wins."""
    envs: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    annotations: dict[str, str] = {}
    for answer in answers:
        envs = {**answer.envs, **envs}
        annotations = {**answer.annotations, **annotations}
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, mount)
        for node in answer.nodes:
            nodes.setdefault(node.container_path, node)
    return AllocateAnswer(
        envs=envs,
        mounts=tuple(mounts.values()),
        nodes=tuple(nodes.values()),
        annotations=annotations,
        cdi_devices=tuple(dict.fromkeys(name for a in answers for name in a.cdi_devices)),
    )


_GO_NAMES = {grpc.StatusCode.CANCELLED: "Canceled"}


def describe(error: grpc.aio.AioRpcError) -> str:
    """Format an error as Go prints it: `rpc error: code = Unknown desc = text`."""
    code = error.code()
    name = _GO_NAMES.get(code) or "".join(part.capitalize() for part in code.name.split("_"))
    late = code is grpc.StatusCode.DEADLINE_EXCEEDED
    text = "context deadline exceeded" if late else error.details() or ""
    return f"rpc error: code = {name} desc = {text}"


# The kubelet's own time-out for dialling a plugin.
DIAL_TIMEOUT_S = 10.0
# The kubelet waits for these two without limit; our bound is far above a plugin's time.
PREFERRED_TIMEOUT_S = 30.0
# The kubelet's KubeletPreStartContainerRPCTimeoutInSecs.
PRE_START_TIMEOUT_S = 30.0

# Here the end of the stream may be read before an answer that the plugin sent earlier; Go reads
# both in order.
ANSWERS_ON_THE_WAY_S = 0.5

_CHANNEL_OPTIONS = (
    # Go servers refuse the socket's path as an authority.
    ("grpc.default_authority", "localhost"),
    # A plugin that restarts on the same path must not inherit the back-off of its predecessor.
    ("grpc.use_local_subchannel_pool", 1),
)

# Error of a call whose connection closes before its answer, in the text of gRPC in Go.
_CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"


class PluginClient:
    """Client of one plugin; close it when its stream has ended."""

    def __init__(self, socket: Path, *, allocate_timeout_s: float) -> None:
        self._socket = socket
        self._allocate_timeout_s = allocate_timeout_s
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        stub: Any = deviceplugin_pb2_grpc.DevicePluginStub
        self._stub = stub(self._channel)
        self._closed = False

    async def options(self) -> PluginOptions:
        """Return the plugin's options.

        Raises: PluginError if the plugin can't be reached.
        """
        try:
            answer = await self._stub.GetDevicePluginOptions(
                _messages.Empty(), timeout=DIAL_TIMEOUT_S, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as exc:
            raise PluginError(describe(exc)) from exc
        return PluginOptions(
            pre_start_required=answer.pre_start_required,
            preferred_allocation=answer.get_preferred_allocation_available,
        )

    async def device_lists(self) -> AsyncIterator[list[Device]]:
        """Yield every list that the ListAndWatch stream sends.

        Raises: PluginError if the stream breaks. A stream that the plugin ends ends normally.
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
            raise PluginError(describe(exc)) from exc

    async def preferred_ids(
        self, available: Iterable[str], must_include: Iterable[str], size: int
    ) -> list[str]:
        """Return the ids that the plugin prefers.

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
        """Call Allocate with a container's ids; return the plugin's answer.

        Raises: PluginError.
        """
        request = _messages.AllocateRequest(
            container_requests=[_messages.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await self._call(self._stub.Allocate, request, self._allocate_timeout_s)
        if not answer.container_responses:
            raise PluginError(f"no containers return in allocation response {answer}")
        return from_message(answer.container_responses[0])

    async def pre_start(self, ids: Iterable[str]) -> None:
        """Call PreStartContainer for the container that holds these ids.

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
        """Close the connection; running calls fail with PluginError, as the kubelet's do."""
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
        """Call the plugin and return its response. Raises: PluginError, its text after `failed`."""
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise PluginError(f"{failed}{describe(exc)}") from exc
        except (asyncio.CancelledError, grpc.aio.UsageError) as exc:
            # Closing cancels running calls. Unless the caller was cancelled itself, this would stay
            # unnoticed: its task would end without an error, and the pod would wait forever.
            if not self._closed or _is_being_cancelled():
                raise
            raise PluginError(f"{failed}{_CLOSING}") from exc


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
