"""Choose how containers of the node get slices: late binding, or the node lock.

A runtime that knows nothing of CDI starts the container without limits and without a warning
(containerd 1.6), so that it supports CDI must be proven.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from hami_node_agent.allocation.response import NamedBy

_KUBELET = (1, 29)
"""First kubelet that passes CDI names of device plugins to the runtime by default."""
_ANNOTATING = (1, 20)
"""Oldest kubelet tested to pass on annotations of a plugin's answer."""
_RUNTIMES = {"containerd": (1, 7), "cri-o": (1, 28)}
"""First versions of runtimes that read the kubelet's CDI names."""
_SWITCHED = frozenset({"containerd"})
"""Runtimes that can be configured to ignore CDI (`enable_cdi`)."""
_READ_ANNOTATIONS = frozenset({"containerd"})
"""Runtimes that were tested with CDI names in annotations."""
_ALWAYS_ON = (2, 0)
"""First containerd in which `enable_cdi` is on by default."""


def named_by(kubelet_version: str) -> NamedBy:
    """Return how this kubelet passes CDI names; both ways if its version is unknown."""
    if not kubelet_version:
        return NamedBy.FIELD | NamedBy.ANNOTATION
    return NamedBy.FIELD if _version(kubelet_version) >= _KUBELET else NamedBy.ANNOTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeReport:
    """Facts that the container runtime reports."""

    name: str
    version: str
    cdi_enabled: bool | None = None
    """Value in the running configuration; None if it is not set there."""
    cdi_dirs: tuple[str, ...] | None = None
    """Folders in which the runtime reads CDI files; None if unknown."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingWay:
    """Way in which containers of this node get their slices, with the reason."""

    late: bool
    reason: str
    named_by: NamedBy = NamedBy.FIELD

    def __str__(self) -> str:
        return f"{'late' if self.late else 'lock'}: {self.reason}"


def way_of(kubelet_version: str, runtime: RuntimeReport, *, cdi_dir: str) -> BindingWay:
    """Return the choice of `auto` for these reports of kubelet and runtime.

    Late only if it is proven: containerd has a switch, which its running configuration shows; CRI-O
    has none, and its files name the directories that it reads.
    """
    found = f"kubelet {kubelet_version}, {runtime}"
    obstacle = _obstacle(kubelet_version, runtime, cdi_dir)
    if obstacle:
        return BindingWay(late=False, reason=f"{found}: {obstacle}")
    by = named_by(kubelet_version)
    how = "it supports CDI" if by is NamedBy.FIELD else "it supports CDI, by annotation"
    return BindingWay(late=True, reason=f"{found}: {how}", named_by=by)


def _obstacle(kubelet_version: str, runtime: RuntimeReport, cdi_dir: str) -> str:
    if _version(kubelet_version) < _ANNOTATING:
        return "the kubelet is older than 1.20"
    since = _RUNTIMES.get(runtime.name)
    if since is None:
        return "its CDI support is unknown"
    if _version(runtime.version) < since:
        return f"CDI is unknown there before {'.'.join(map(str, since))}"
    by_field = _version(kubelet_version) >= _KUBELET
    if not by_field and runtime.name not in _READ_ANNOTATIONS:
        return "the kubelet is older than 1.29, and CDI names in annotations are untested there"
    if runtime.name in _SWITCHED:
        if runtime.cdi_enabled is False:
            return "enable_cdi is false in its configuration"
        if runtime.cdi_dirs is None:
            return "its configuration is unknown: set cri_socket"
        if runtime.cdi_enabled is None and _version(runtime.version) < _ALWAYS_ON:
            return "its configuration lacks enable_cdi"
    directories = runtime.cdi_dirs or ()
    if _plain(cdi_dir) not in {_plain(directory) for directory in directories}:
        listed = ", ".join(directories) or "no directory"
        return f"it reads CDI files in {listed}, and cdi_dir is {cdi_dir}"
    return ""


def _plain(directory: str) -> str:
    """Replace /var/run by /run."""
    path = PurePosixPath(directory)
    return str(PurePosixPath("/", *path.parts[2:]) if path.parts[1:3] == ("var", "run") else path)


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
