"""HAMi 2.10's NVIDIA device plugin as far as a kubelet and a later adoption can see (protocol 5).

It reads what HAMi's scheduler wrote on the pod, as HAMi's does, and answers Allocate in hami-core
mode. Ids are advertised alike (`<GPU-uuid>-<i>`) and it does not prefer any.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from hamicommon.k8s.annotations import NVIDIA_ALLOCATED, NVIDIA_TO_ALLOCATE, decode_pod_devices
from hamicommon.k8s.types import Json
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc

from tests.hami.answers import hami_answer
from tests.waiting import PATIENCE_S

RESOURCE = "nvidia.com/gpu"
SOCKET = "nvidia-gpu.sock"


def hami_annotations(node: str, written: str) -> dict[str, str]:
    """Return the annotations of HAMi's scheduler and plugin on a live pod (protocol 2.2, 2.7)."""
    return {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": "1790000000",
        "hami.io/bind-phase": "success",
        "hami.io/bind-time": "1790000001",
        NVIDIA_TO_ALLOCATE: written,
        NVIDIA_ALLOCATED: written,
    }


class HamiPlugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Serves Allocate for the pods that `pending` lists."""

    def __init__(
        self, *, cards: Sequence[str], slots: int, base: Path, pending: Callable[[], Sequence[Json]]
    ) -> None:
        self._cards = cards
        self._slots = slots
        self._base = base
        self._pending = pending
        self._served: Counter[str] = Counter()
        self._stopping = threading.Event()

    @contextmanager
    def serving(self, sockets: Path) -> Iterator[None]:
        """Registered with the kubelet during the block."""
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self, server)
        socket = sockets / SOCKET
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            with grpc.insecure_channel(f"unix:{sockets / 'kubelet.sock'}") as channel:
                stub: Any = deviceplugin_pb2_grpc.RegistrationStub(channel)
                stub.Register(
                    api.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE),
                    timeout=PATIENCE_S,
                    wait_for_ready=True,
                )
            yield
        finally:
            self._stopping.set()
            server.stop(grace=1).wait()
            socket.unlink(missing_ok=True)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        """Neither PreStartContainer nor preferences."""
        return api.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:
        """Once, as HAMi does while no card changes its health."""
        yield api.ListAndWatchResponse(
            devices=[
                api.Device(ID=f"{card}-{slot}", health="Healthy")
                for card in self._cards
                for slot in range(self._slots)
            ]
        )
        self._stopping.wait()

    def Allocate(self, request: Any, context: Any) -> Any:
        """The next entry of the pending pod's annotation, whatever ids the kubelet names."""
        answers = []
        for _ in request.container_requests:
            pod = self._next()
            if pod is None:
                context.abort(grpc.StatusCode.UNKNOWN, "no binding pod found on node")
            answers.append(self._answer(pod))
        return api.AllocateResponse(container_responses=answers)

    def _next(self) -> Json | None:
        for pod in self._pending():
            if self._served[pod["metadata"]["uid"]] < len(_entries(pod)):
                return pod
        return None

    def _answer(self, pod: Mapping[str, Any]) -> api.ContainerAllocateResponse:
        uid = pod["metadata"]["uid"]
        entry = _entries(pod)[self._served[uid]]
        containers = [
            c["name"] for c in pod["spec"]["containers"] if RESOURCE in c["resources"]["limits"]
        ]
        container = containers[self._served[uid]]
        self._served[uid] += 1
        (self._base / "lock").mkdir(exist_ok=True)
        (self._base / "lock").chmod(0o777)
        cache = self._base / "containers" / f"{uid}_{container}"
        cache.mkdir(parents=True)
        cache.chmod(0o777)
        return hami_answer(
            uid,
            container,
            {share.uuid: share.memory_mib for share in entry},
            core_percent=entry[0].core_percent,
            base=str(self._base),
            lock_dir=str(self._base / "lock"),
        )


def _entries(pod: Mapping[str, Any]) -> list[Any]:
    written = (pod["metadata"].get("annotations") or {}).get(NVIDIA_TO_ALLOCATE, "")
    return [entry for entry in decode_pod_devices(written) if entry]
