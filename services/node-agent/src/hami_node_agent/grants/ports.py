"""Ports to the node, the kubelet, the API server and the bus, and the values that they exchange.

`adapters/` has one module for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.k8s.mig import MigReservation
from pydantic import BaseModel

from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.records import AgentState, PodsSeen, Record


class StateStore(Protocol):
    """The agent's state on disk."""

    def save(self, state: AgentState) -> None:
        """Replace the saved state (blocking); a power cut can't damage it. Raises: Unavailable."""


class ContainerFiles(Protocol):
    """The directories behind an Allocate answer (blocking; each call may run twice)."""

    def limits_dir(self, nonce: str) -> Path:
        """The directory that a container sees at /etc/hami."""

    def write_limits(self, record: Record) -> None:
        """Make the container's limits those of the record. Raises: Unavailable."""

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """Create a container's directory with an empty region that any of its users may write.

        A directory of this name is replaced; its empty files are mount points for the runtime.
        Raises: Unavailable.
        """

    def keep_cache_dir(self, name: str, nonce: str) -> None:
        """Recreate missing files of a container's directory; keep others. Raises: Unavailable."""


class GrantSource(Protocol):
    """Ways to ask for grants when the announcements are not enough."""

    @property
    def connected(self) -> bool:
        """True while announcements can arrive."""

    async def refresh(self) -> bool:
        """Ask the scheduler for all live grants; True when the ledger answered in full.

        Raises: Unavailable, InvalidRequest.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG slice that was made for a container."""

    pod: PodRef
    container: str
    reservation: MigReservation


class NodePodApi(Protocol):
    """This node's pods."""

    def snapshot(self) -> PodsSeen:
        """Return what the watch has at present."""

    def name_of(self, pod_uid: str) -> PodRef | None:
        """The pod of this node with that uid."""

    async def container_env(self, grant: NodeGrant, container: str) -> Mapping[str, str]:
        """Literal env entries of a container's spec; empty when the API server is unavailable."""

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        """Grants in `hami.io/grant` of this node's pods that our scheduler signed.

        Raises: Unavailable.
        """

    async def warn(self, pod: PodRef, message: str) -> None:
        """A Warning event on the pod; failures are logged."""

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        """Pods that have not started and ask for `count` devices in one container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """Our answer, as the kubelet keeps it in its checkpoint."""

    nonce: str
    cards: tuple[GpuUuid, ...]
    cache_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAnswer:
    """Another device plugin's answer (HAMi's, before us), as the kubelet keeps it."""

    visible: tuple[str, ...]
    """Cards that the container sees, as the plugin names them: uuids, indexes or MIG uuids."""
    memory_mib: tuple[int, ...]
    """HAMi's limit for each visible card, by position; empty: the answer is none of HAMi's."""
    core_percent: int | None
    cache_dir: str
    """Name of the directory with its shared region, under `$HOOK_PATH/vgpu/containers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Ids that a container holds by the kubelet, and our answer's nonce."""

    pod_uid: str
    container: str
    device_ids: frozenset[str]
    namespace: str = ""
    pod_name: str = ""
    answer: KeptAnswer | None = None
    """Ours. None where only PodResources is there: it does not show answers."""
    foreign: ForeignAnswer | None = None
    """Another plugin's."""

    @property
    def binds_late(self) -> bool:
        """Whether its answer was a nonce, whose slice is looked up at the container's start."""
        return self.answer is not None and not self.answer.cards


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReading:
    """Contents of checkpoint and PodResources, and which of them could not be read."""

    holdings: tuple[Holding, ...]
    problems: tuple[str, ...] = ()
    """One sentence for each that could not be read."""
    readable: bool = True
    """False when none could: then nothing is known."""


class KubeletState(Protocol):
    """Holders of device ids, as the kubelet itself keeps them."""

    async def read(self) -> KubeletReading:
        """All containers that hold ids of our resource, as far as they can be read."""

    async def holdings(self) -> tuple[Holding, ...]:
        """All containers that hold ids of our resource.

        Raises: Unavailable when neither PodResources nor the checkpoint can be read.
        """

    async def checkpointed(self) -> tuple[Holding, ...]:
        """Read the kubelet's checkpoint, the cheaper of the two.

        Raises: Unavailable when it can't be read.
        """

    async def claimed(self) -> frozenset[str]:
        """Nonces of slices that pods of the kubelet have by ResourceClaims.

        Raises: Unavailable when PodResources can't be read.
        """

    async def claiming(self) -> frozenset[tuple[str, str, str]]:
        """(Namespace, pod, container) of all that have slices by ResourceClaims.

        Raises: Unavailable when PodResources can't be read.
        """

    async def pods(self) -> frozenset[tuple[str, str]]:
        """(namespace, name) of all pods the kubelet still has. Raises: Unavailable."""


class RequestBus(Protocol):
    """The asking half of the bus."""

    async def request(self, subject: str, payload: BaseModel, *, timeout_s: float) -> bytes:
        """Ask and return the reply's body. Raises: Unavailable."""


class Publisher(Protocol):
    """The outgoing half of the bus."""

    @property
    def connected(self) -> bool:
        """True while publishing can succeed."""

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        """Store a fact. Raises: Unavailable."""
