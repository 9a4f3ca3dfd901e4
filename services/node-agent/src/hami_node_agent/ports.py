"""What the agent needs from outside, in its own words; `adapters/` has one module for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hamicommon.domain.ids import GpuUuid
from hamicommon.events import DeviceSample
from hamicommon.k8s.mig import MigReservation, MigSlice
from pydantic import BaseModel

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.mig_partition import Instance, OwnInstance, ProfileFacts
from hami_node_agent.devices.offer import CardFacts
from hami_node_agent.devices.topology import CardLinks
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.candidates import PodsSeen
from hami_node_agent.grants.ownership import Holding, Reassigned
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.usage.regions.evidence import CardProcesses


class DeviceProbe(Protocol):
    """The node's cards; every call ends within its time-out or raises Unavailable."""

    async def cards(self) -> tuple[CardFacts, ...]:
        """All cards, by index."""

    async def links(self) -> tuple[CardLinks, ...]:
        """How the cards are linked, by index. Raises: Unavailable."""

    async def reload(self) -> bool:
        """Begins anew where the driver was reloaded or cards came or went; True if it did.

        Raises: Unavailable while the driver is away.
        """

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """Cards that do not answer, with the reason."""

    async def watch_events(self) -> None:
        """Registers for XID events, after `cards`; must precede `next_xid`."""

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Waits about a second for an XID event; a None uuid means that any card may be meant."""

    async def samples(self) -> tuple[DeviceSample, ...]:
        """What each card is doing now. Raises: Unavailable."""

    async def processes(self) -> Mapping[str, CardProcesses]:
        """Who has a context on each card, and computed since the last call. Raises: Unavailable."""


class MigDriver(Protocol):
    """Cuts cards; every call ends within its time-out or raises Unavailable."""

    async def profiles(self, card: GpuUuid) -> tuple[ProfileFacts, ...]:
        """What the card can be cut into; it is put into MIG mode where nobody uses it.

        Raises: Conflict when that can't be done now, with the reason; Unavailable.
        """

    async def instances(self, cards: Sequence[GpuUuid]) -> tuple[Instance, ...]:
        """All GPU instances of these cards. Raises: Unavailable."""

    async def make(self, card: GpuUuid, part: MigSlice) -> OwnInstance:
        """Makes GPU and compute instance of that profile at that place.

        Raises: Conflict when there is no such profile or no room there; Unavailable.
        """

    async def destroy(self, instance: Instance) -> None:
        """Destroys a GPU instance and what is in it; gone already is as good.

        Raises: Conflict while a process uses it; Unavailable.
        """


class StateStore(Protocol):
    """The agent's state on disk."""

    def save(self, state: AgentState) -> None:
        """Replaces it (blocking), also against a power cut. Raises: Unavailable."""


class ContainerFiles(Protocol):
    """The directories behind an Allocate answer (blocking; each call may run twice)."""

    def limits_dir(self, nonce: str) -> Path:
        """The directory that a container sees at /etc/hami."""

    def write_limits(self, record: Record) -> None:
        """Makes the container's limits those of the record. Raises: Unavailable."""

    def make_cache_dir(self, name: str) -> None:
        """An empty directory that any user in the container can write. Raises: Unavailable."""

    def keep_cache_dir(self, name: str) -> None:
        """Makes the directory if it is gone, and leaves what is in it. Raises: Unavailable."""


class GrantSource(Protocol):
    """Ways to ask for grants when the announcements are not enough."""

    @property
    def connected(self) -> bool:
        """True while announcements can arrive."""

    async def refresh(self) -> bool:
        """Asks the scheduler for all live grants; True when the ledger answered in full.

        Raises: Unavailable, InvalidRequest.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """A pod by all its names."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG slice that was made for a container."""

    pod: PodRef
    container: str
    reservation: MigReservation


class CardMoves(Protocol):
    """The ledger's word on containers that hold other cards than granted."""

    async def ask(self, owner: Reassigned, partners: Iterable[Reassigned]) -> str:
        """Moves the owner's grant, and with it the partners'; empty, or why that can't be.

        May be asked any number of times. Raises: Unavailable when nobody answers.
        """


class PodApi(Protocol):
    """This node's pods."""

    def seen(self) -> PodsSeen:
        """What the watch says at present."""

    def name_of(self, pod_uid: str) -> PodRef | None:
        """The pod of this node with that uid."""

    async def container_env(self, grant: NodeGrant, container: str) -> Mapping[str, str]:
        """Literal env entries of a container's spec; empty when the API server is away."""

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        """Grants in `hami.io/grant` of this node's pods that our scheduler signed.

        Raises: Unavailable.
        """

    async def warn(self, pod: PodRef, message: str) -> None:
        """A Warning event on the pod; failures are logged."""

    def waiting_for(self, count: int) -> tuple[PodRef, ...]:
        """Pods that have not started and ask for `count` devices in one container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the kubelet's books say, and which of them could not be read."""

    holdings: tuple[Holding, ...]
    problems: tuple[str, ...] = ()
    """One sentence per book that could not be read."""
    readable: bool = True
    """False when none could: then nothing is known."""


class KubeletBooks(Protocol):
    """Who holds which device ids, in the kubelet's own words."""

    async def read(self) -> Reading:
        """All containers that hold ids of our resource, as far as the books can be read."""

    async def holdings(self) -> tuple[Holding, ...]:
        """All containers that hold ids of our resource.

        Raises: Unavailable when neither PodResources nor the checkpoint can be read.
        """

    async def checkpointed(self) -> tuple[Holding, ...]:
        """Those in the kubelet's checkpoint, the cheaper of its two books.

        Raises: Unavailable when it can't be read.
        """

    async def pods(self) -> frozenset[tuple[str, str]]:
        """(namespace, name) of all pods the kubelet still has. Raises: Unavailable."""


class AskingBus(Protocol):
    """The asking half of the bus."""

    async def request(self, subject: str, payload: BaseModel, *, timeout_s: float) -> bytes:
        """Asks and returns the reply's body. Raises: Unavailable."""


class Publisher(Protocol):
    """The outgoing half of the bus."""

    @property
    def connected(self) -> bool:
        """True while publishing can succeed."""

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        """Stores a fact. Raises: Unavailable."""
