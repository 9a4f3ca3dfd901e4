"""Read the container runtime's configuration: containerd's by its CRI socket, CRI-O's from files.

CRI-O does not report its configuration over CRI. Its files are TOML: `crio.conf`, then those of
`crio.conf.d` in the order of their names, each overriding keys of those before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import orjson
from hamicommon.errors import Unavailable
from hamicommon.kubelet_api._generated import criruntime_pb2 as api
from hamicommon.kubelet_api._generated import criruntime_pb2_grpc

from hami_node_agent.allocation.binding_way import RuntimeReport

TIMEOUT_S = 5.0


class ContainerRuntime:
    """Client of the container runtime; asks on each call, as a restart may change the answer."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def report(self) -> RuntimeReport:
        """Return the runtime's report. Raises: Unavailable if it does not answer."""
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


CRIO_DEFAULT_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")


def read_crio_cdi_dirs(folder: Path) -> tuple[str, ...]:
    """Return the folders from which CRI-O reads CDI files, by its configuration (blocking).

    Raises: Unavailable when a file can't be read.
    """
    found: tuple[str, ...] = CRIO_DEFAULT_CDI_DIRS
    for path in _crio_files(folder):
        try:
            config = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise Unavailable(f"{path} can't be read: {exc}") from exc
        runtime = config.get("crio", {}).get("runtime", {})
        if isinstance(directories := runtime.get("cdi_spec_dirs"), list):
            found = tuple(map(str, directories))
    return found


def _crio_files(folder: Path) -> Iterator[Path]:
    main = folder / "crio.conf"
    if main.is_file():
        yield main
    yield from sorted(path for path in (folder / "crio.conf.d").glob("*") if path.is_file())
