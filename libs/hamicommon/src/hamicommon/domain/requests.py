"""Requests of pods for cards, as parsed from the pod by `vendors/pod_request.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hamicommon.domain.ids import PodUid

Role = Literal["init", "sidecar", "app"]
"""Role of a container; init containers run one after the other, before app containers.

A sidecar is an init container with restartPolicy Always: it starts in their order, and runs beside
the init containers declared after it and beside the app containers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Request of one container for cards of one vendor."""

    vendor: str
    count: int
    memory_mib: int = 0
    """Memory per card in MiB; 0: `memory_percent` applies."""
    memory_percent: int | None = None
    """Percent of each card's memory, 1..100, used only if `memory_mib` is 0."""
    core_percent: int = 0
    """Percent of each card's cores; 0: no share is guaranteed and no limit is enforced."""
    traits: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Facts about the request that only the vendor understands (a slice's size, a mode)."""

    def memory_mib_on(self, capacity_mib: int) -> int:
        """Return the MiB that the request takes of a card of this size, truncated like HAMi."""
        if self.memory_mib > 0:
            return self.memory_mib
        if self.memory_percent is not None:
            return capacity_mib * self.memory_percent // 100
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """Requests of one container; `requests` is empty if it asks for no card."""

    name: str
    role: Role
    requests: tuple[DeviceRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Cards of one vendor that the pod's annotations allow; empty tuples: no restriction."""

    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str = ""
    """Value of `nvidia.com/vgpu-mode`, which must contain the card's mode; empty: any."""
    numa_bind: bool = False
    traits: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Facts from the pod's annotations that only the vendor understands (a QoS policy, a class)."""


ANY_CARD = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """Weights from the annotation `hami.io/device-scoring-weights`."""

    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Preferences for choosing among nodes and cards that fit.

    `node` is `binpack`, `spread` or `fragmentation`; `gpu` is a tuple of the keys in the order
    written (`binpack`, `spread`, `topology-aware`, `mutex`, `numa`), or only `fragmentation`.
    """

    node: str = "binpack"
    gpu: tuple[str, ...] = ("spread",)
    weights: ScoreWeights = field(default_factory=ScoreWeights)
    numa_first: bool = False
    """Whether cards are ordered by NUMA node first (`nvidia.com/numa-bind`)."""

    @property
    def mutex(self) -> bool:
        """Whether the pod takes idle cards only."""
        return "mutex" in self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Request of the pod for its node's CPU; kube-scheduler grants it."""

    cpu_milli: int = 0
    """Requested CPU in thousandths of a core; 0: none, or unknown."""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Request of a pod as the engine reads it: init containers first, then app containers.

    A field that changes which cards a pod gets belongs into `containers`, `selections` or `policy`:
    nodes' answers are kept by these (`placement/walks/walked.py`).
    """

    uid: PodUid
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    selections: dict[str, Selection] = field(default_factory=dict)
    """Allowed cards by vendor."""
    policy: Policy = field(default_factory=Policy)
    host: HostRequest = field(default_factory=HostRequest)

    @property
    def wants_devices(self) -> bool:
        """Whether a container asks for a card."""
        return any(container.requests for container in self.containers)

    def selection_of(self, vendor: str) -> Selection:
        """Return the cards of the vendor that the pod's annotations allow."""
        return self.selections.get(vendor, ANY_CARD)
