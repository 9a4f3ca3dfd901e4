"""Serve the kubelet's unix sockets: plugin registration (v1beta1) and PodResources (v1)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.kubelet_api._generated import (
    deviceplugin_pb2,
    deviceplugin_pb2_grpc,
    podresources_pb2,
    podresources_pb2_grpc,
)

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.state import DeviceBook

Held = tuple[tuple[str, tuple[str, ...]], ...]
"""Held ids as (resource, ids) for each resource and NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """Pod with its app containers; init containers are not listed, as in the kubelet."""

    name: str
    namespace: str
    containers: tuple[tuple[str, Held], ...]


def snapshot(pods: Iterable[Json], book: DeviceBook) -> list[PodDevices]:
    """Return the answer to List; a pod whose Allocate is still running shows no ids."""
    return [
        PodDevices(
            name=pod_spec.name(pod),
            namespace=pod_spec.namespace(pod),
            containers=tuple(
                (container["name"], _held_devices(pod_spec.uid(pod), container["name"], book))
                for container in pod_spec.app_containers(pod)
            ),
        )
        for pod in pods
    ]


def _held_devices(pod_uid: str, container: str, book: DeviceBook) -> Held:
    return tuple(
        (allocation.resource, ids)
        for allocation in book.of_container(pod_uid, container)
        for ids in allocation.ids_by_numa.values()
    )


VERSION = "v1beta1"
# sizeof(sockaddr_un.sun_path) is 108 with its NUL.
MAX_SOCKET_PATH = 107

_EXTENDED_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_deviceplugin: Any = deviceplugin_pb2
_podresources: Any = podresources_pb2


class KubeletRegistrationServicer:
    """Service v1beta1.Registration; calls `on_register(resource, endpoint)` for a valid request."""

    def __init__(self, on_register: Callable[[str, str], None]) -> None:
        self._on_register = on_register

    async def Register(  # noqa: N802 - the name is the protocol's
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        """Accept a plugin's registration, or answer why not."""
        refusal = refuse_registration(request.version, request.resource_name, request.endpoint)
        if refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, refusal)
        self._on_register(request.resource_name, request.endpoint)
        return _deviceplugin.Empty()


def refuse_registration(version: str, resource: str, endpoint: str) -> str | None:
    """Return in the kubelet's text why a registration is refused; None if it is accepted."""
    if version != VERSION:
        return (
            f'requested API version "{version}" is not supported by kubelet. '
            f'Supported version is ["{VERSION}"]'
        )
    domain = resource.partition("/")[0]
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    if _EXTENDED_RESOURCE.fullmatch(resource) is None or own or resource.startswith("requests."):
        return f'the ResourceName "{resource}" is invalid'
    if not endpoint or "/" in endpoint:
        return f'the endpoint "{endpoint}" is not a file name in the device plugin directory'
    return None


class PodResourcesServicer:
    """Service v1.PodResourcesLister; answers with `snapshot()`."""

    def __init__(self, snapshot: Callable[[], list[PodDevices]]) -> None:
        self._snapshot = snapshot

    async def List(self, request: Any, context: object) -> Any:  # noqa: N802 - as above
        """Return every pod of the node with the devices of its app containers."""
        del request, context
        pods = [
            _podresources.PodResources(
                name=pod.name,
                namespace=pod.namespace,
                containers=[
                    _podresources.ContainerResources(
                        name=container,
                        devices=[
                            _podresources.ContainerDevices(resource_name=resource, device_ids=ids)
                            for resource, ids in held
                        ],
                    )
                    for container, held in pod.containers
                ],
            )
            for pod in self._snapshot()
        ]
        return _podresources.ListPodResourcesResponse(pod_resources=pods)


@asynccontextmanager
async def serve_registration(
    socket: Path, on_register: Callable[[str, str], None]
) -> AsyncIterator[None]:
    """Serve `kubelet.sock` of the device-plugin directory."""
    server = grpc.aio.server()
    add: Any = deviceplugin_pb2_grpc.add_RegistrationServicer_to_server
    add(KubeletRegistrationServicer(on_register), server)
    async with _serving(server, socket):
        yield


@asynccontextmanager
async def serve_pod_resources(
    socket: Path, snapshot: Callable[[], list[PodDevices]]
) -> AsyncIterator[None]:
    """Serve `kubelet.sock` of the pod-resources directory."""
    server = grpc.aio.server()
    add: Any = podresources_pb2_grpc.add_PodResourcesListerServicer_to_server
    add(PodResourcesServicer(snapshot), server)
    async with _serving(server, socket):
        yield


@asynccontextmanager
async def _serving(server: grpc.aio.Server, socket: Path) -> AsyncIterator[None]:
    if len(str(socket)) > MAX_SOCKET_PATH:
        raise InvalidRequest(
            f"--root: {socket} has {len(str(socket))} characters; a unix socket's path "
            f"may have {MAX_SOCKET_PATH}: choose a shorter directory"
        )
    socket.unlink(missing_ok=True)  # noqa: ASYNC240 - one local file, at start
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=0.5)
