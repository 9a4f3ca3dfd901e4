"""Which host paths a container sees where: the plugin's mounts and devices, then its volumes.

Two ways to bring them about. `namespace`: the launcher binds them into a root of the container's
own. `pathmap`: no mount is made; preloaded libraries map the paths, which covers programs that use
libvgpu and the stand-in driver, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hamicommon.k8s.types import Json

from kubelocal.kubelet.devices.types import AllocateAnswer, Mount

PRELOAD_FILE = "/etc/ld.so.preload"


class MountMode(StrEnum):
    """How mounts of containers come about on this machine; the Node's annotation shows it."""

    NAMESPACE = "namespace"
    PATHMAP = "pathmap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Mounts of the pod's volumes, directories to be made for them, and volumes left out."""

    mounts: tuple[Mount, ...]
    directories: tuple[Path, ...]
    skipped: tuple[str, ...]


def volumes(pod: Json, container: Json, *, volumes_dir: Path) -> Volumes:
    """emptyDir and hostPath volumes; other kinds (tokens, config maps) are not simulated."""
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    mounts: list[Mount] = []
    directories: list[Path] = []
    skipped: list[str] = []
    for wanted in container.get("volumeMounts") or []:
        volume = sources.get(wanted["name"], {})
        if "emptyDir" in volume:
            host = volumes_dir / wanted["name"] / wanted.get("subPath", "")
            directories.append(host)
        elif "hostPath" in volume:
            host = Path(volume["hostPath"]["path"]) / wanted.get("subPath", "")
            if volume["hostPath"].get("type") in (None, "", "DirectoryOrCreate"):
                directories.append(host)
        else:
            skipped.append(wanted["name"])
            continue
        read_only = bool(wanted.get("readOnly", False))
        mounts.append(
            Mount(container_path=wanted["mountPath"], host_path=str(host), read_only=read_only)
        )
    return Volumes(mounts=tuple(mounts), directories=tuple(directories), skipped=tuple(skipped))


def ordered(answer: AllocateAnswer, of_volumes: Sequence[Mount]) -> list[Mount]:
    """All mounts, parents before what lies below them. Device files are mounts too, except those
    that already stand at their place in the host's /dev."""
    nodes = [
        Mount(container_path=node.container_path, host_path=node.host_path)
        for node in answer.nodes
        if node.container_path != node.host_path
    ]
    mounts = [*answer.mounts, *nodes, *of_volumes]
    return sorted(mounts, key=lambda mount: mount.container_path.rstrip("/").count("/"))


def pathmap_env(
    env: Mapping[str, str],
    mounts: Sequence[Mount],
    *,
    pathmap_library: Path,
    read_text: Callable[[Path], str],
) -> dict[str, str]:
    """Additional variables in pathmap mode: the path table, and the libraries that the mounted
    /etc/ld.so.preload names, by their host paths."""
    longest_first = sorted(mounts, key=lambda mount: -len(mount.container_path))
    preload = [str(pathmap_library)]
    for mount in mounts:
        if mount.container_path == PRELOAD_FILE:
            names = read_text(Path(mount.host_path)).replace(":", " ").split()
            preload += [_host_path(name, longest_first) for name in names]
    if env.get("LD_PRELOAD"):
        preload.append(env["LD_PRELOAD"])
    table = ";".join(f"{mount.container_path}={mount.host_path}" for mount in longest_first)
    return {"HAMI_PATHMAP": table, "LD_PRELOAD": ":".join(preload)}


def _host_path(path: str, longest_first: Sequence[Mount]) -> str:
    for mount in longest_first:
        prefix = mount.container_path.rstrip("/")
        if path == prefix or path.startswith(prefix + "/"):
            return mount.host_path.rstrip("/") + path[len(prefix) :]
    return path
