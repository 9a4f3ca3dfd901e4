"""Late binding: Allocate answers one nonce, and PreStartContainer says what it stands for.

Where it may be used, and what the answer looks like. A runtime that knows nothing of CDI starts the
container without limits and without a word (containerd 1.6), so it must be known to honour CDI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hami_node_agent.domain.device_list import ContainerSpec

CDI_KIND = "hami.io/slice"
CDI_VERSION = "0.5.0"
"""The first with which a name may contain a dot; runtimes read older ones."""
_KUBELET = (1, 29)
"""From then on the kubelet hands CDI names of device plugins to the runtime without a gate."""
_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 28)}
"""From then on CDI is on unless it is switched off."""


def late_answer(nonce: str) -> ContainerSpec:
    """Nothing but a name."""
    return ContainerSpec(envs={}, mounts=(), cdi_devices=(f"{CDI_KIND}={nonce}",))


def nonce_of(name: str) -> str | None:
    """The nonce in a qualified CDI name; None if it is none of ours."""
    kind, equals, nonce = name.partition("=")
    return nonce if equals and kind == CDI_KIND else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingWay:
    """How containers of this node get their slices."""

    late: bool
    reason: str

    def __str__(self) -> str:
        return f"{'late' if self.late else 'lock'}: {self.reason}"


def way_of(kubelet_version: str, runtime_version: str) -> BindingWay:
    """What `auto` means on a Node that says these versions of itself."""
    runtime, _, number = runtime_version.partition("://")
    said = f"kubelet {kubelet_version}, {runtime_version}"
    if _version(kubelet_version) < _KUBELET:
        return BindingWay(late=False, reason=f"{said}: the kubelet is older than 1.29")
    wanted = _RUNTIMES.get(runtime)
    if wanted is None:
        return BindingWay(late=False, reason=f"{said}: whether it honours CDI is not known")
    if _version(number) < wanted:
        since = ".".join(map(str, wanted))
        reason = f"{said}: CDI is off there before {since} unless its configuration says otherwise"
        return BindingWay(late=False, reason=reason)
    return BindingWay(late=True, reason=said)


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
