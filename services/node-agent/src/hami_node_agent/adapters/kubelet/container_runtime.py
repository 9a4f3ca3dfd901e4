"""The container runtime's own report of what it is and how it runs, over its CRI socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import orjson
from hamicommon.errors import Unavailable
from hamicommon.kubelet_api._generated import criruntime_pb2 as api
from hamicommon.kubelet_api._generated import criruntime_pb2_grpc

from hami_node_agent.allocation.late_binding_rules import RuntimeReport

TIMEOUT_S = 5.0


class ContainerRuntime:
    """A runtime that is asked again each time: it may have been restarted otherwise configured."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def report(self) -> RuntimeReport:
        """Raises: Unavailable when it does not answer."""
        if not self._socket.exists():
            raise Unavailable(f"cri_socket {self._socket}: no such socket")
        async with grpc.aio.insecure_channel(f"unix:{self._socket}") as channel:
            make: Any = criruntime_pb2_grpc.RuntimeServiceStub
            stub = make(channel)
            try:
                version = await stub.Version(api.VersionRequest(), timeout=TIMEOUT_S)
                status = await stub.Status(api.StatusRequest(verbose=True), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as exc:
                raise Unavailable(f"cri_socket {self._socket}: {exc.details()}") from exc
        config = _json(status.info.get("config", ""))
        directories = config.get("cdiSpecDirs")
        enabled = config.get("enableCDI")
        return RuntimeReport(
            name=version.runtime_name,
            version=version.runtime_version,
            cdi_enabled=enabled if isinstance(enabled, bool) else None,
            cdi_dirs=tuple(map(str, directories)) if isinstance(directories, list) else None,
        )


def _json(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
