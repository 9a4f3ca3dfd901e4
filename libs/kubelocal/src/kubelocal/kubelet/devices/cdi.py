"""CDI devices of a container: find them in files, and return their edits.

As in containerd from 1.7 on, a name is looked up in the files of the directory when the container
is created, and a name that is in no file is an error. The edits of a file override the container's
own values (Container Device Interface specification, containerEdits).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from hamicommon.errors import InvalidRequest

from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceNode, Mount

ANNOTATION_PREFIX = "cdi.k8s.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Additions of CDI devices to a container."""

    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()


def names_of(answer: AllocateAnswer) -> tuple[str, ...]:
    """Return the CDI devices of a container: from the field, then from annotations.

    A device that is named in both ways is returned once (containerd 1.7 and 2).
    """
    annotated = (
        name
        for key, value in sorted(answer.annotations.items())
        if key.startswith(ANNOTATION_PREFIX)
        for name in value.split(",")
    )
    return tuple(dict.fromkeys([*answer.cdi_devices, *annotated]))


def edits_of(names: Sequence[str], directory: Path | None) -> Edits:
    """Read the edits of these devices from files (blocking).

    Without a directory this is a runtime without CDI, which ignores names and reports no error
    (containerd 1.6).

    Raises: InvalidRequest if a name is in no file.
    """
    if directory is None or not names:
        return Edits()
    described = dict(_devices(directory))
    missing = [name for name in names if name not in described]
    if missing:
        raise InvalidRequest(
            f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}"
        )
    return _merge(edit for name in names for edit in described[name])


def _devices(directory: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Return by qualified name the device's own edits and those of its file."""
    for path in sorted(directory.glob("*.json")):
        try:
            spec = orjson.loads(path.read_bytes())
            shared = spec.get("containerEdits") or {}
            for device in spec["devices"]:
                yield f"{spec['kind']}={device['name']}", [device["containerEdits"], shared]
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            # An unreadable file hides only its own devices.
            continue


def _merge(edits: Iterable[dict[str, Any]]) -> Edits:
    envs: list[tuple[str, str]] = []
    mounts: list[Mount] = []
    nodes: list[DeviceNode] = []
    for edit in edits:
        for text in edit.get("env") or []:
            name, _, value = text.partition("=")
            envs.append((name, value))
        for mount in edit.get("mounts") or []:
            mounts.append(
                Mount(
                    container_path=mount["containerPath"],
                    host_path=mount["hostPath"],
                    read_only="ro" in (mount.get("options") or []),
                )
            )
        for node in edit.get("deviceNodes") or []:
            nodes.append(
                DeviceNode(
                    container_path=node["path"],
                    host_path=node.get("hostPath") or node["path"],
                    permissions=node.get("permissions") or "rwm",
                )
            )
    return Edits(envs=tuple(envs), mounts=tuple(mounts), nodes=tuple(nodes))
