"""Judge mounts over the files that limits are read from, and volumes of the node's folders.

Paths are compared lexically, as a container runtime resolves them: links in an image or on a host
can't be seen from a pod's spec. `/var/run` is the one link that every Linux has. A mount is judged
by its path in the container, and by its volume if that is a folder of the node; volumes of other
kinds are what an operator made.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from hamicommon.admission.tampering.containers import JudgedContainer, object_of, objects
from hamicommon.admission.tampering.findings import Finding, Kind
from hamicommon.clipping import clip
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

Parts = tuple[str, ...]
"""A path's components from the root; empty: the root."""


def parts_of(path: str) -> Parts:
    """Return the components of `path`, which is taken from the root even without a leading slash.

    `//etc/x/./../hami/` is (etc, hami). `..` at the root stays there.
    """
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del found[-1:]
        elif part not in ("", "."):
            found.append(part)
    return tuple(found[1:] if found[:2] == ["var", "run"] else found)


def covers(path: Parts, guarded: Iterable[Parts]) -> Parts | None:
    """Return the first of `guarded` that is equal to, below or above `path`; None if none is."""
    for other in guarded:
        shared = min(len(path), len(other))
        if path[:shared] == other[:shared]:
            return other
    return None


def is_within(path: Parts, folder: Parts) -> bool:
    """Return whether `path` is the folder or is below it."""
    return path[: len(folder)] == folder


def text_of(parts: Parts) -> str:
    """Return the path as a string."""
    return "/" + "/".join(parts)


IN_CONTAINERS = ("/etc/ld.so.preload", "/etc/hami", "/usr/local/vgpu")
"""Paths in containers from which limits are loaded, and where use is accounted."""
_LISTS: tuple[tuple[str, str, Kind], ...] = (
    ("volumeMounts", "mountPath", "mount"),
    ("volumeDevices", "devicePath", "device"),
)
_ORDINARY_LENGTH = 512
"""Length of paths above which the result is not cached, as users choose paths."""
_KNOWN_PATHS = 4096


class MountRules:
    """Rules for paths at which containers mount, and for the node's paths in volumes."""

    def __init__(self, vendors: Vendors, host_folders: tuple[str, ...]) -> None:
        folders = (vendor.request_folder for vendor in vendors)
        self._inside = tuple(map(parts_of, IN_CONTAINERS))
        self._host = tuple(map(parts_of, host_folders))
        self._requests = tuple(dict.fromkeys(parts_of(folder) for folder in folders if folder))
        self._known = lru_cache(_KNOWN_PATHS)(self._reached_from)

    @property
    def request_folders(self) -> tuple[str, ...]:
        """Name of the last component of folders in which mounts ask the runtime for cards."""
        return tuple(parts[-1] for parts in self._requests)

    def host_volumes(self, volumes: Any) -> dict[str, str]:
        """Return the volumes that reach protected folders of the node: name -> path on the node."""
        return {
            str(volume.get("name")): path
            for volume in objects(volumes)
            if "hostPath" in volume
            and isinstance(path := object_of(volume, "hostPath").get("path"), str)
            and covers(parts_of(path), self._host) is not None
        }

    def concern(self, container: Json, host_volumes: Container[str]) -> bool:
        """Return whether a mount of the container has to be judged."""
        return any(
            str(entry.get("name")) in host_volumes
            or self._protected_path(entry.get(key)) is not None
            for listed, key, _ in _LISTS
            if listed in container
            for entry in objects(container[listed])
        )

    def findings(
        self, at: JudgedContainer, host_volumes: Mapping[str, str], *, wants: bool
    ) -> Iterator[Finding]:
        """Yield the findings of one container; `wants`: its pod asks for a card."""
        for listed, key, kind in _LISTS:
            if listed not in at.container:
                continue
            for place, entry in enumerate(objects(at.container[listed])):
                path = entry.get(key)
                why = self._why_not(path, str(entry.get("name")), host_volumes, wants=wants)
                if why:
                    what = f"{kind} at {clip(str(path), 128)}"
                    yield at.finding(kind, what, why, place=place)

    def _why_not(
        self, path: object, volume: str, host_volumes: Mapping[str, str], *, wants: bool
    ) -> str:
        """Return why a mount is wrong; empty if it is allowed."""
        reached = self._protected_path(path)
        if reached is not None and reached in self._requests:
            return "asks the runtime for cards and bypasses the scheduler; ask for their resource"
        if not wants:
            return ""
        if reached is not None:
            return f"reaches {text_of(reached)}, where its limits are; mount it elsewhere"
        if volume in host_volumes:
            shown = clip(host_volumes[volume], 128)
            return f"shows {shown} of the node, from where limits are reached; leave it out"
        return ""

    def _protected_path(self, path: object) -> Parts | None:
        if not isinstance(path, str) or not path:
            return None
        return self._known(path) if len(path) <= _ORDINARY_LENGTH else self._reached_from(path)

    def _reached_from(self, path: str) -> Parts | None:
        """Return the protected path that is equal to, below or above this path.

        Protected are the limits and the folders of requests.
        """
        parts = parts_of(path)
        asked = next((folder for folder in self._requests if is_within(parts, folder)), None)
        return asked if asked is not None else covers(parts, self._inside)
