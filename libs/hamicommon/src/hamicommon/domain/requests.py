"""The request of a pod, parsed once (`vendors/pod_request.py` makes it from a pod)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hamicommon.domain.ids import PodUid

Role = Literal["init", "sidecar", "app"]
"""Init containers run one after the other, before the app containers.

A sidecar is an init container with restartPolicy Always: it starts in their order, and runs beside
the init containers declared after it and beside the app containers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """Cards of one vendor for one container."""

    vendor: str
    count: int
    memory_mib: int = 0
    """Per card; 0 means: see `memory_percent`."""
    memory_percent: int | None = None
    """Per card, 1..100 of the card's memory; used only when memory_mib is 0."""
    core_percent: int = 0
    """Per card; 0 means no share is guaranteed and none is enforced."""
    traits: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Traits of the request that only the vendor understands (a slice's size, a mode)."""

    def memory_mib_on(self, capacity_mib: int) -> int:
        """Memory that this request takes on a card of `capacity_mib` (truncated, as HAMi does)."""
        if self.memory_mib > 0:
            return self.memory_mib
        if self.memory_percent is not None:
            return capacity_mib * self.memory_percent // 100
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container of the pod; `requests` is empty when it asks for no card."""

    name: str
    role: Role
    requests: tuple[DeviceRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which cards the pod's annotations allow, for one vendor; empty tuples mean no constraint."""

    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str = ""
    """Value of `nvidia.com/vgpu-mode`: the card's mode must be contained in it; empty: any."""
    numa_bind: bool = False
    traits: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Traits of the pod's annotations that only the vendor understands (a QoS policy, a class)."""


ANY_CARD = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """`hami.io/device-scoring-weights`."""

    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to choose among nodes and cards that fit.

    `node` is `binpack`, `spread` or `fragmentation`; `gpu` is a tuple of the keys in the order
    written (`binpack`, `spread`, `topology-aware`, `mutex`, `numa`), or `fragmentation` alone.
    """

    node: str = "binpack"
    gpu: tuple[str, ...] = ("spread",)
    weights: ScoreWeights = field(default_factory=ScoreWeights)
    numa_first: bool = False
    """Cards are ordered by NUMA node first, whatever the vendor (`nvidia.com/numa-bind`)."""

    @property
    def mutex(self) -> bool:
        """True when the pod takes idle cards only."""
        return "mutex" in self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Request of the pod to its node beside cards; kube-scheduler grants it, we only look at it."""

    cpu_milli: int = 0
    """Thousandths of a core; 0: it asks for none, or it is not known."""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """A pod as the engine sees it: init containers first, then app containers, as in the spec.

    A field that changes which cards a pod gets belongs into `containers`, `selections` or `policy`:
    nodes' answers are kept by these (`placement/walks/walked.py`).
    """

    uid: PodUid
    namespace: str
    name: str
    containers: tuple[ContainerRequest, ...]
    selections: dict[str, Selection] = field(default_factory=dict)
    """By vendor."""
    policy: Policy = field(default_factory=Policy)
    host: HostRequest = field(default_factory=HostRequest)

    @property
    def wants_devices(self) -> bool:
        """True when at least one container asks for at least one card."""
        return any(container.requests for container in self.containers)

    def selection_of(self, vendor: str) -> Selection:
        """Return which cards of the vendor the pod's annotations allow."""
        return self.selections.get(vendor, ANY_CARD)
