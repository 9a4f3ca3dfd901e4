"""The kubelet's device plugin API, v1beta1: a thin servicer over the use cases.

`registration.py` serves it on `nvidia-gpu.sock`. ListAndWatch follows `cards.py`; Allocate and
GetPreferredAllocation go to `allocating.py`, PreStartContainer to `prestarting.py`. Errors of ours
become gRPC codes in one table; the kubelet puts their text into the pod's status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, NoReturn

import grpc
from hamicommon.errors import Conflict, HamiError, InvalidRequest, NotFound, Unavailable
from hamicommon.kubelet._generated import deviceplugin_pb2 as api
from hamicommon.kubelet._generated import deviceplugin_pb2_grpc

from hami_node_agent.allocating import Allocating
from hami_node_agent.cards import Cards
from hami_node_agent.domain.device_list import ContainerSpec
from hami_node_agent.domain.replicas import replicas_of
from hami_node_agent.prestarting import PreStarting

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

VERSION = "v1beta1"

_CODES: tuple[tuple[type[HamiError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


class Plugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """One instance serves across restarts of the server."""

    def __init__(
        self,
        *,
        cards: Cards,
        allocating: Allocating,
        prestarting: PreStarting,
        numa_topology: bool,
        preferred_allocation: bool = True,
    ) -> None:
        self._cards = cards
        self._allocating = allocating
        self._prestarting = prestarting
        self._numa_topology = numa_topology
        self._told_at_s: dict[object, float] = {}
        self._streams_end = asyncio.Event()
        self.options = api.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=preferred_allocation
        )

    async def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self, request: api.Empty, context: Context
    ) -> api.DevicePluginOptions:
        """What we told the kubelet at registration."""
        return self.options

    async def ListAndWatch(  # noqa: N802 - the API's name
        self, request: api.Empty, context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """All slots of all cards, at once and after every change of health."""
        end = asyncio.ensure_future(self._streams_end.wait())
        seen = self._cards.changed.version
        yield self._devices()
        stream = object()
        self._told_at_s[stream] = time.monotonic()
        try:
            while not end.done():
                change = asyncio.ensure_future(self._cards.changed.wait(seen))
                try:
                    await asyncio.wait([change, end], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
                if not end.done():
                    seen = self._cards.changed.version
                    yield self._devices()
        finally:
            end.cancel()
            del self._told_at_s[stream]

    def end_streams(self) -> None:
        """Ends the streams that are open: the kubelet then has nothing to hand out."""
        self._streams_end.set()
        self._streams_end = asyncio.Event()

    def listened_for_s(self) -> float | None:
        """How long a kubelet has had our devices, in seconds; None while it is away."""
        if not self._told_at_s:
            return None
        return time.monotonic() - min(self._told_at_s.values())

    def _devices(self) -> api.ListAndWatchResponse:
        answer = api.ListAndWatchResponse()
        for card in self._cards.devices():
            for replica in replicas_of(card.uuid, card.slots):
                device = answer.devices.add(
                    ID=str(replica), health="Healthy" if card.healthy else "Unhealthy"
                )
                if self._numa_topology:
                    device.topology.nodes.add(ID=card.numa)
        return answer

    async def GetPreferredAllocation(  # noqa: N802 - the API's name
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        """Slots on the granted cards; a container without a grant in flight is left out."""
        answer = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            ids = self._allocating.prefer(
                available=wanted.available_deviceIDs,
                must_include=wanted.must_include_deviceIDs,
                size=wanted.allocation_size,
            )
            if ids:
                answer.container_responses.add(deviceIDs=ids)
        return answer

    async def Allocate(  # noqa: N802 - the API's name
        self, request: api.AllocateRequest, context: Context
    ) -> api.AllocateResponse:
        """Env, mounts and devices of each container."""
        try:
            wanted = [_ids(c.devices_ids) for c in request.container_requests]
            specs = await self._allocating.allocate(wanted)
        except HamiError as exc:
            await _abort(context, exc)
        return api.AllocateResponse(container_responses=[answer_message(spec) for spec in specs])

    async def PreStartContainer(  # noqa: N802 - the API's name
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """An error keeps the container from starting."""
        try:
            await self._prestarting.check(_ids(request.devices_ids))
        except HamiError as exc:
            await _abort(context, exc)
        return api.PreStartContainerResponse()


def _ids(listed: Iterable[str]) -> frozenset[str]:
    ids = list(listed)
    unique = frozenset(ids)
    if not unique or len(unique) != len(ids):
        raise InvalidRequest(f"devices_ids: distinct device ids are wanted, got {ids}")
    return unique


def answer_message(spec: ContainerSpec) -> api.ContainerAllocateResponse:
    """The answer on the wire."""
    return api.ContainerAllocateResponse(
        envs=dict(spec.envs),
        mounts=[
            api.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in spec.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=inside, host_path=outside, permissions="rw")
            for inside, outside in spec.device_files
        ],
        annotations=dict(spec.annotations),
        cdi_devices=[api.CDIDevice(name=name) for name in spec.cdi_devices],
    )


async def _abort(context: Context, error: HamiError) -> NoReturn:
    code = next((c for kind, c in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
    raise AssertionError("abort raises")
