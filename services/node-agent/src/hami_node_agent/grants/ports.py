"""Interfaces to node, kubelet, API server and bus, with the values that they exchange.

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
    """Storage of the agent's state."""

    def save(self, state: AgentState) -> None:
        """Replace the saved state so that a power cut can't damage it (blocking).

        Raises: Unavailable.
        """


class ContainerFiles(Protocol):
    """Folders behind an Allocate answer (blocking; each call may run twice)."""

    def limits_dir(self, nonce: str) -> Path:
        """Return the folder that a container sees at /etc/hami."""

    def write_limits(self, record: Record) -> None:
        """Write the record's limits into the container's file. Raises: Unavailable."""

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """Create a container's folder with an empty region that its users may write.

        A directory of this name is replaced; its empty files are mount points for the runtime.
        Raises: Unavailable.
        """

    def keep_cache_dir(self, name: str, nonce: str) -> None:
        """Create missing files in a container's folder. Raises: Unavailable."""


class GrantSource(Protocol):
    """Source of grants other than announcements."""

    @property
    def connected(self) -> bool:
        """Whether announcements can arrive."""

    async def refresh(self) -> bool:
        """Read all live grants from the scheduler; return True if the answer was complete.

        Raises: Unavailable, InvalidRequest.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """MIG device that was made for a container."""

    pod: PodRef
    container: str
    reservation: MigReservation


class NodePodApi(Protocol):
    """Pods of this node."""

    def snapshot(self) -> PodsSeen:
        """Return what the watch has at present."""

    def name_of(self, pod_uid: str) -> PodRef | None:
        """The pod of this node with that uid."""

    async def container_env(self, grant: NodeGrant, container: str) -> Mapping[str, str]:
        """Return a container's literal environment; empty if the API server is unavailable."""

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        """Return the verified grants in annotations of this node's pods.

        Raises: Unavailable.
        """

    async def warn(self, pod: PodRef, message: str) -> None:
        """Create a Warning event on the pod; failures are logged."""

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        """Return pods that have not started and request `count` devices in one container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """Our Allocate answer, as the kubelet stores it in its checkpoint."""

    nonce: str
    cards: tuple[GpuUuid, ...]
    cache_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAnswer:
    """Another device plugin's answer (HAMi's, before us), as the kubelet stores it."""

    visible: tuple[str, ...]
    """Cards that the container sees, as the plugin names them: uuids, indexes or MIG uuids."""
    memory_mib: tuple[int, ...]
    """HAMi's limit for each visible card; empty: HAMi did not write the answer."""
    core_percent: int | None
    cache_dir: str
    """Name of the folder with its shared region, under `$HOOK_PATH/vgpu/containers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Device ids that a container holds, with the stored answer."""

    pod_uid: str
    container: str
    device_ids: frozenset[str]
    namespace: str = ""
    pod_name: str = ""
    answer: KeptAnswer | None = None
    """Our answer; None if only PodResources could be read, which lacks answers."""
    foreign: ForeignAnswer | None = None
    """Another plugin's answer."""

    @property
    def binds_late(self) -> bool:
        """Return whether the answer was a nonce for late binding."""
        return self.answer is not None and not self.answer.cards


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReading:
    """Contents of checkpoint and PodResources, and problems in reading them."""

    holdings: tuple[Holding, ...]
    problems: tuple[str, ...] = ()
    """A sentence for each source that could not be read."""
    readable: bool = True
    """Whether at least one source could be read."""


class KubeletState(Protocol):
    """Holders of device ids, as the kubelet stores them."""

    async def read(self) -> KubeletReading:
        """Return all containers that hold ids of our resource, as far as they can be read."""

    async def holdings(self) -> tuple[Holding, ...]:
        """Return all containers that hold ids of our resource. Raises: Unavailable.

        Raises: Unavailable when neither PodResources nor the checkpoint can be read.
        """

    async def checkpointed_holdings(self) -> tuple[Holding, ...]:
        """Return the holders from the checkpoint only, which is cheaper. Raises: Unavailable.

        Raises: Unavailable when it can't be read.
        """

    async def claim_nonces(self) -> frozenset[str]:
        """Return the nonces of slices that pods have by ResourceClaims. Raises: Unavailable.

        Raises: Unavailable when PodResources can't be read.
        """

    async def claiming(self) -> frozenset[tuple[str, str, str]]:
        """Return (namespace, pod, container) of holders of such slices. Raises: Unavailable.

        Raises: Unavailable when PodResources can't be read.
        """

    async def pods(self) -> frozenset[tuple[str, str]]:
        """Return (namespace, name) of all pods that the kubelet has. Raises: Unavailable."""


class RequestBus(Protocol):
    """Part of the bus that asks."""

    async def request(self, subject: str, payload: BaseModel, *, timeout_s: float) -> bytes:
        """Send a request and return the reply's body. Raises: Unavailable."""


class Publisher(Protocol):
    """Part of the bus that publishes."""

    @property
    def connected(self) -> bool:
        """Whether publishing can succeed."""

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        """Store a message. Raises: Unavailable."""
