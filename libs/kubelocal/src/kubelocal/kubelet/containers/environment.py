"""Environment, command line and mounts of a container.

The device plugin's variables come first and the container's own after them, so the container's take
precedence, as in the real kubelet. The stand-in driver's variables come last, because they replace
mounts of a container runtime, which no pod can change.

Mounts are provided in two ways. `namespace`: the launcher binds them into a separate root of the
container. `pathmap`: no mount is made; preloaded libraries map the paths, which covers only
programs that use libvgpu and the stand-in driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.cdi import Edits
from kubelocal.kubelet.devices.state import AllocateAnswer, Mount

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The nvidia container runtime reads the cards from mounts below this path if the variable is it.
VOLUME_DEVICES = "/var/run/nvidia-container-devices"
# Command of a container without one, because there is no image that would define it.
PAUSE = ("sleep", "infinity")

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInDriver:
    """Simulated driver, by its folder on this machine."""

    library_dir: Path
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDriver:
    """This machine's driver, as its loader finds it."""

    tools_dir: Path
    """Folder of `vgpu-probe` and `vgpu-load`, which run on any driver."""
    library_dir: Path | None
    """Folder of the driver's libraries, if the loader does not find them."""


Driver = StandInDriver | OwnDriver


def environment(
    pod: Json,
    container: Json,
    answer: AllocateAnswer,
    *,
    node: str,
    driver: Driver,
    edits: Edits | None = None,
) -> dict[str, str]:
    """Return all variables of the container; those of CDI devices override its own.

    Raises: InvalidRequest when a variable's source is not simulated.
    """
    env = {
        "PATH": DEFAULT_PATH,
        "HOME": "/root",
        "HOSTNAME": pod_spec.name(pod),
        **answer.envs,
        **_own(pod, container, node),
        **dict(edits.envs if edits is not None else ()),
    }
    if isinstance(driver, StandInDriver):
        return env | _stand_in(env, answer, driver)
    return env | _own_driver(env, answer, driver)


def _stand_in(
    env: Mapping[str, str], answer: AllocateAnswer, driver: StandInDriver
) -> dict[str, str]:
    found = {
        "PATH": _with(env["PATH"], str(driver.library_dir)),
        "LD_LIBRARY_PATH": _with(str(driver.library_dir), env.get("LD_LIBRARY_PATH", "")),
    }
    if driver.config is not None:
        found["FAKEGPU_CONFIG"] = str(driver.config)
        found["FAKEGPU_VISIBLE_DEVICES"] = visible_devices(env, answer.mounts)
    return found


def _own_driver(
    env: Mapping[str, str], answer: AllocateAnswer, driver: OwnDriver
) -> dict[str, str]:
    """Limit CUDA to the cards that a container runtime would show, as none hides them here."""
    visible = visible_devices(env, answer.mounts)
    found = {"PATH": _with(env["PATH"], str(driver.tools_dir))}
    if driver.library_dir is not None:
        found["LD_LIBRARY_PATH"] = _with(str(driver.library_dir), env.get("LD_LIBRARY_PATH", ""))
    if visible != "all":
        found["CUDA_VISIBLE_DEVICES"] = "" if visible == "none" else visible
    return found


def _with(first: str, second: str) -> str:
    return f"{first}:{second}" if second else first


def _own(pod: Json, container: Json, node: str) -> dict[str, str]:
    sources = [s for s in container.get("envFrom") or [] if not _optional(s)]
    if sources:
        raise InvalidRequest("envFrom is not simulated: give the variables by value")
    own: dict[str, str] = {}
    for variable in container.get("env") or []:
        source = variable.get("valueFrom")
        if source is None:
            own[variable["name"]] = expand(variable.get("value") or "", own)
        elif "fieldRef" in source:
            own[variable["name"]] = _field(pod, source["fieldRef"]["fieldPath"], node)
        elif not _optional(source):
            raise InvalidRequest(
                f"env {variable['name']}: only values and fieldRef are simulated, "
                f"not {', '.join(source)}"
            )
    return own


def _optional(source: Json) -> bool:
    return any(isinstance(s, dict) and s.get("optional") for s in source.values())


def _field(pod: Json, path: str, node: str) -> str:
    metadata = pod["metadata"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": pod_spec.namespace(pod),
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName") or "default",
        "status.hostIP": "127.0.0.1",
        "status.podIP": "127.0.0.1",
        "status.podIPs": "127.0.0.1",
    }
    if path in fields:
        return str(fields[path])
    entry = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if entry is None:
        raise InvalidRequest(f"fieldRef {path} is not a field that a container can read")
    return str((metadata.get(entry[1]) or {}).get(entry[2], ""))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME); unknown names are unchanged, and $$ is a plain dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def command_line(container: Json, env: Mapping[str, str]) -> Sequence[str]:
    """Return command and arguments; without a command (which the image would have) sleep."""
    command = container.get("command") or []
    if not command:
        return PAUSE
    return [expand(part, env) for part in [*command, *(container.get("args") or [])]]


def visible_devices(env: Mapping[str, str], mounts: Sequence[Mount]) -> str:
    """Return FAKEGPU_VISIBLE_DEVICES, as a GPU runtime would read NVIDIA_VISIBLE_DEVICES."""
    asked = env.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked == VOLUME_DEVICES:
        prefix = VOLUME_DEVICES + "/"
        names = [m.container_path.removeprefix(prefix) for m in mounts]
        asked = ",".join(
            n for n, m in zip(names, mounts, strict=True) if m.container_path.startswith(prefix)
        )
    return "none" if asked in ("", "void", "none") else asked


PRELOAD_FILE = "/etc/ld.so.preload"


class MountMode(StrEnum):
    """Way in which containers get mounts on this machine; an annotation of the Node shows it."""

    NAMESPACE = "namespace"
    PATHMAP = "pathmap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Mounts of the pod's volumes, folders to create for them, and unsupported volumes."""

    mounts: tuple[Mount, ...]
    directories: tuple[Path, ...]
    skipped: tuple[str, ...]


def volumes(pod: Json, container: Json, *, volumes_dir: Path) -> Volumes:
    """Return the mounts of emptyDir and hostPath volumes; other kinds are not simulated."""
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


def order_mounts(answer: AllocateAnswer, of_volumes: Sequence[Mount]) -> list[Mount]:
    """Return all mounts, each parent before the paths below it.

    Device files are mounts too, except those at the same path as in the host's /dev.
    """
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
    """Return additional variables in pathmap mode.

    The path table, and the libraries that the mounted /etc/ld.so.preload names, by their host
    paths.
    """
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
