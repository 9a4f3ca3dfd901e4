"""CDI files of late-bound containers: one per nonce, deleted with the container's pod.

    <cdi_dir>/hami.io-slice_<nonce>.json

A file is never changed while its name may be read, as the runtime caches the content. All calls
block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import orjson
from hamicommon.errors import Unavailable

from hami_node_agent.adapters.host.durable import age_s, replace_file
from hami_node_agent.allocation.response import CDI_KIND, CDI_VERSION
from hami_node_agent.devices.device_list import ContainerSpec

logger = logging.getLogger(__name__)

_PREFIX = "hami.io-slice_"
OUR_FILES = f"{_PREFIX}*.json"
"""Pattern of our files in the folder that all vendors share."""
# containerd watches the folder by inotify and takes a file that reappears immediately for the old
# one.
REWRITE_PAUSE_S = 0.02


class CdiFiles:
    """Folder of CDI files that the container runtime reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, nonce: str, spec: ContainerSpec) -> None:
        """Describe the device `nonce`, unless it is described. Raises: Unavailable."""
        path = self._path(nonce)
        try:
            if path.exists():
                if _device_of(path) == nonce:
                    return
                path.unlink()
                time.sleep(REWRITE_PAUSE_S)
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(path, orjson.dumps(_cdi_spec(nonce, spec)), durable=False)
        except OSError as exc:
            raise Unavailable(f"{path} can't be written: {exc}") from exc

    def remove(self, nonces: Iterable[str]) -> None:
        """Delete the descriptions of devices; failures are logged."""
        for nonce in nonces:
            path = self._path(nonce)
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                logger.warning(
                    "Failed to remove a CDI file", extra={"path": str(path), "error": str(exc)}
                )

    def remove_strays(self, *, nonces: Container[str], older_than_s: float) -> None:
        """Delete descriptions of unknown nonces that are older than this."""
        for nonce in self.nonces():
            if nonce not in nonces and age_s(self._path(nonce)) > older_than_s:
                self.remove([nonce])

    def mounted_paths(self) -> frozenset[str]:
        """Return the host paths that our devices mount. Raises: Unavailable."""
        return frozenset(host for path in self._ours() for host in _mounts(path).values())

    def source_of(self, nonce: str, container_path: str) -> str:
        """Return the host path that the device mounts at `container_path`; empty if there is none.

        Raises: Unavailable.
        """
        return _mounts(self._path(nonce)).get(container_path, "")

    def nonces(self) -> frozenset[str]:
        """Return the nonces of all descriptions."""
        return frozenset(path.stem.removeprefix(_PREFIX) for path in self._ours())

    def _ours(self) -> list[Path]:
        return sorted(self._directory.glob(OUR_FILES))

    def _path(self, nonce: str) -> Path:
        return self._directory / f"{_PREFIX}{nonce}.json"


def _cdi_spec(nonce: str, spec: ContainerSpec) -> dict[str, Any]:
    edits = {
        "env": [f"{name}={value}" for name, value in spec.envs.items()],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in spec.mounts
        ],
        "deviceNodes": [
            {"path": inside, "hostPath": outside, "permissions": "rw"}
            for inside, outside in spec.device_files
        ],
    }
    device = {"name": nonce, "containerEdits": edits}
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [device]}


def _mounts(path: Path) -> dict[str, str]:
    """Return container path -> host path of the file's mounts; empty if the file is gone.

    Raises: Unavailable.
    """
    try:
        spec = orjson.loads(path.read_bytes())
        edits = [device["containerEdits"] for device in spec["devices"]]
        return {m["containerPath"]: m["hostPath"] for edit in edits for m in edit["mounts"]}
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as exc:
        raise Unavailable(f"{path}: {exc}") from exc


def _device_of(path: Path) -> str | None:
    try:
        return str(orjson.loads(path.read_bytes())["devices"][0]["name"])
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
