"""The interface of a vendor: its names, how a container asks for its cards, and its nodes' cards.

A vendor module translates between Kubernetes objects (raw JSON) and the domain; it holds no state
and does no I/O. `registry.py` lists the vendors; `pod_request.py` (requests), `admission`
(mutation) and the inventory of nodes without our agent call them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, card_id
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.pod_annotations import UserAnnotation
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules

PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]
"""How well two cards are connected; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """Extended resources of a vendor; empty where it has none of the kind."""

    count: str
    memory: str = ""
    memory_percent: str = ""
    core: str = ""
    priority: str = ""
    memory_factor: int = 1
    """MiB per unit of `memory` (and of a namespace's quota on it)."""
    alone: tuple[str, ...] = ()
    """Resources among these, besides `count`, that ask for a card without it (AWS cores)."""

    def all(self) -> tuple[str, ...]:
        """Every name that is set."""
        names = (self.count, self.memory, self.memory_percent, self.core, self.priority)
        return tuple(name for name in names if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationKeys:
    """Names of the vendor's annotations; empty where it has none of the kind."""

    register: str = ""
    """On the node: its cards."""
    handshake: str = ""
    """On the node: sign of life of a device plugin."""
    to_allocate: str = ""
    """On the pod: slices that the node still has to hand out."""
    allocated: str = ""
    """On the pod: its slices, for good."""
    extra: tuple[str, ...] = ()
    """On the pod: what else the vendor writes there."""
    use_types: str = ""
    """On the pod, by people: a comma list of types that its cards must have one of."""
    avoid_types: str = ""
    use_uuids: str = ""
    avoid_uuids: str = ""
    choices: tuple[UserAnnotation[Any], ...] = ()
    """On the pod, by people: what else the vendor reads there."""
    pair_scores: str = ""
    """On the node: how well its cards are connected."""
    lock: str = ""
    """On the node: the lock that the vendor's device plugin expects at Allocate and removes after
    it (protocol 1.0.6); empty for a vendor that never locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Result of `Vendor.mutate` for one container."""

    wants: bool
    """True when the container asks for a card of this vendor."""
    warnings: tuple[str, ...] = ()


NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A pod that has its cards, as the writers of annotations see it."""

    node: NodeName
    containers: Sequence[ContainerGrant]
    """In spec order, also those without a card."""
    cards: Mapping[GpuUuid, GpuDevice]
    """At least the cards in `containers`."""
    selections: Mapping[str, Selection]
    """By vendor."""
    now: datetime

    @classmethod
    def by_card_ids(
        cls,
        placement: Placement,
        cards: Mapping[GpuUuid, GpuDevice],
        selections: Mapping[str, Selection],
        now: datetime,
    ) -> Placed:
        """The placement with the ids that the node's device plugins know, in place of the ledger's.

        `cards` are the node's.
        """
        ids = {uuid: GpuUuid(card_id(uuid)) for uuid in cards}
        containers = placement.containers
        if any(uuid != known for uuid, known in ids.items()):
            cards = {ids[uuid]: replace(card, uuid=ids[uuid]) for uuid, card in cards.items()}
            containers = tuple(
                replace(
                    container,
                    shares=tuple(replace(s, uuid=ids[s.uuid]) for s in container.shares),
                )
                for container in containers
            )
        return cls(
            node=placement.node,
            containers=containers,
            cards=cards,
            selections=selections,
            now=now,
        )


class Vendor(Protocol):
    """One vendor of cards."""

    @property
    def name(self) -> str:
        """HAMi's `commonWord`, such as `NVIDIA`; the key of the vendor everywhere."""

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""

    @property
    def rules(self) -> VendorRules:
        """How the engine judges and chooses its cards."""

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return what the container asks for; None when it asks for no card of this vendor.

        `annotations` are the pod's.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Which cards the pod's annotations allow."""

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The cards that a Node object reports; empty when it reports none.

        Raises: InvalidRequest when what it reports is malformed.
        """

    def node_pair_scores(self, node: Json) -> PairScores:
        """How the node's cards are connected; empty when unknown.

        Raises: InvalidRequest when what it reports is malformed.
        """

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """Return what this vendor writes on a placed pod, HAMi's keys and values to the byte.

        Empty when none of the containers has a card of this vendor.
        """

    def plugin_alive(self, node: Json) -> bool:
        """Whether the node's device plugin of this vendor can take pods, as far as the Node shows.

        Asked only of nodes where our agent does not run (protocol 1.x "CheckHealth").
        """

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Fills in defaults at admission, editing the given objects (the caller's own copy).

        Doing it twice changes nothing more.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """


@runtime_checkable
class RestoresDetails(Protocol):
    """A vendor whose slices have details that can be read from a placed pod."""

    def detail_of(self, share: DeviceShare, annotations: Mapping[str, str]) -> Mapping[str, Any]:
        """`DeviceShare.detail` of a slice that was read from the pod's annotations."""
