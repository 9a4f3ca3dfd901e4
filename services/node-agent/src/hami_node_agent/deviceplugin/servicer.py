"""Base class of device plugins for the kubelet's API v1beta1, independent of vendors.

A vendor names the devices there are and what a container gets that was given some of them
(`devices`, `answers`); `registration.py` serves it. Errors of ours become gRPC codes in one table;
the kubelet puts their text into the pod's status. `examples/directory-plugin/README.md` shows a
vendor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from hamicommon.errors import Conflict, HamiError, InvalidRequest, NotFound, Unavailable
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc

from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.state import Signal

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

VERSION = "v1beta1"

_CODES: tuple[tuple[type[HamiError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedDevice:
    """Device as advertised to the kubelet."""

    device_id: str
    healthy: bool = True
    numa: int | None = None
    """NUMA node; None if it is not reported to the kubelet."""


class DevicePluginService(ABC, deviceplugin_pb2_grpc.DevicePluginServicer):
    """Device plugin of one resource; the instance is used across restarts of its server."""

    def __init__(
        self, changed: Signal, *, prefers: bool = False, checks_starts: bool = False
    ) -> None:
        """`prefers` and `checks_starts`: whether the kubelet shall make these calls.

        `changed` wakes when `devices` has something new. `prefers` and `checks_starts`: whether the
        kubelet is to call `prefer` and `check`.
        """
        self._changed = changed
        self._listening_since_s: dict[object, float] = {}
        self._streams_end = asyncio.Event()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.options = api.DevicePluginOptions(
            pre_start_required=checks_starts, get_preferred_allocation_available=prefers
        )

    @abstractmethod
    def devices(self) -> Iterable[AdvertisedDevice]:
        """Return all present devices."""

    @abstractmethod
    async def answers(self, requests: Sequence[frozenset[str]]) -> Sequence[ContainerSpec]:
        """Answer Allocate for the containers with these ids. Raises: HamiError."""

    def knows(self, device_id: str) -> bool:
        """Return whether a device of this id exists, healthy or not."""
        return any(device.device_id == device_id for device in self.devices())

    def prefer(
        self, *, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return preferred device ids for the container; empty: the kubelet chooses."""
        del available, must_include, size
        return ()

    async def check(self, ids: frozenset[str]) -> None:
        """Wait until the container with these ids may start. Raises: HamiError."""

    def listened_for_s(self) -> float | None:
        """Return the seconds since a kubelet received our devices.

        None while it is unavailable.
        """
        if not self._listening_since_s:
            return None
        return time.monotonic() - min(self._listening_since_s.values())

    async def calls_finished(self, timeout_s: float) -> bool:
        """Wait until no Allocate or PreStartContainer call is running and all answers are sent.

        False: one is not yet.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _count(self, context: Context) -> None:
        """Count a call as running until its answer is sent, or its caller is gone."""
        self._running += 1
        self._idle.clear()
        context.add_done_callback(self._on_sent)  # type: ignore[arg-type]  # stubs: a class of theirs

    def _on_sent(self, _context: object) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    def end_streams(self) -> None:
        """End the open ListAndWatch streams, so that the kubelet has no devices to hand out.

        It closes its connection, too, so calls that run fail there.
        """
        self._streams_end.set()
        self._streams_end = asyncio.Event()

    async def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self, request: api.Empty, context: Context
    ) -> api.DevicePluginOptions:
        """Return the same options as sent to the kubelet at registration."""
        return self.options

    async def ListAndWatch(  # noqa: N802 - the API's name
        self, request: api.Empty, context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """Stream all devices, immediately and after every change."""
        end = asyncio.ensure_future(self._streams_end.wait())
        seen = self._changed.version
        yield self._list_devices()
        stream = object()
        self._listening_since_s[stream] = time.monotonic()
        try:
            while not end.done():
                change = asyncio.ensure_future(self._changed.wait(seen))
                try:
                    await asyncio.wait([change, end], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
                if not end.done():
                    seen = self._changed.version
                    yield self._list_devices()
        finally:
            end.cancel()
            del self._listening_since_s[stream]

    def _list_devices(self) -> api.ListAndWatchResponse:
        answer = api.ListAndWatchResponse()
        for device in self.devices():
            added = answer.devices.add(
                ID=device.device_id, health="Healthy" if device.healthy else "Unhealthy"
            )
            if device.numa is not None:
                added.topology.nodes.add(ID=device.numa)
        return answer

    async def GetPreferredAllocation(  # noqa: N802 - the API's name
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        """Return preferences; containers without one are left out."""
        answer = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            ids = self.prefer(
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
        """Return variables, mounts and devices of each container; all or none."""
        self._count(context)
        try:
            wanted = [self._known_ids(c.devices_ids) for c in request.container_requests]
            specs = await self.answers(wanted)
        except HamiError as exc:
            await _abort(context, exc)
        return api.AllocateResponse(container_responses=[answer_message(spec) for spec in specs])

    async def PreStartContainer(  # noqa: N802 - the API's name
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """Check a container's start; an error keeps the container from starting."""
        self._count(context)
        try:
            await self.check(_distinct(request.devices_ids))
        except HamiError as exc:
            await _abort(context, exc)
        return api.PreStartContainerResponse()

    def _known_ids(self, listed: Iterable[str]) -> frozenset[str]:
        ids = _distinct(listed)
        strange = sorted(device_id for device_id in ids if not self.knows(device_id))
        if strange:
            raise InvalidRequest(f"devices_ids: {', '.join(strange)}: not devices of this resource")
        return ids


def _distinct(listed: Iterable[str]) -> frozenset[str]:
    ids = list(listed)
    unique = frozenset(ids)
    if not unique or len(unique) != len(ids):
        raise InvalidRequest(f"devices_ids: expected distinct device ids, got {ids}")
    return unique


def answer_message(spec: ContainerSpec) -> api.ContainerAllocateResponse:
    """Return an Allocate answer as protobuf."""
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
