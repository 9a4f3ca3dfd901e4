"""The environment and command line of one container.

The device plugin's variables come first and the container's own after them, so the container's
win, as in the real kubelet. The stand-in driver's variables come last: they stand for what a
container runtime mounts, which no pod can change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.devices.cdi import Edits
from kubelocal.kubelet.devices.types import AllocateAnswer, Mount

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The nvidia container runtime reads the cards from mounts below this path when the variable is it.
VOLUME_DEVICES = "/var/run/nvidia-container-devices"
# What a container without a command runs: the image that would know better is not there.
PAUSE = ("sleep", "infinity")

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInDriver:
    """Where the stand-in driver lies on this machine."""

    library_dir: Path
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDriver:
    """The driver of this machine, as its loader finds it."""

    tools_dir: Path
    """`vgpu-probe` and `vgpu-load`, which run on any driver."""
    library_dir: Path | None
    """Its libraries, where the loader does not find them by itself."""


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
    """All variables of the container; those of its CDI devices win over its own.

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
    """No container runtime hides cards here: CUDA is shown those that one would let in."""
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
    """Replaces $(NAME); an unknown name stays as it is, and $$ is a plain dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def command_line(container: Json, env: Mapping[str, str]) -> Sequence[str]:
    """Command and arguments. Without a command the image's own would run; we sleep instead."""
    command = container.get("command") or []
    if not command:
        return PAUSE
    return [expand(part, env) for part in [*command, *(container.get("args") or [])]]


def visible_devices(env: Mapping[str, str], mounts: Sequence[Mount]) -> str:
    """FAKEGPU_VISIBLE_DEVICES as a GPU container runtime would read NVIDIA_VISIBLE_DEVICES."""
    asked = env.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked == VOLUME_DEVICES:
        prefix = VOLUME_DEVICES + "/"
        names = [m.container_path.removeprefix(prefix) for m in mounts]
        asked = ",".join(
            n for n, m in zip(names, mounts, strict=True) if m.container_path.startswith(prefix)
        )
    return "none" if asked in ("", "void", "none") else asked
