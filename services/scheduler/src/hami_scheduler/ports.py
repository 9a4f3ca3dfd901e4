"""What the use cases need of the world, in domain words; `adapters/` says how.

All calls are bounded in time and raise only from `hamicommon.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from hamicommon.db.ledger import Change, Draft, Entry, LockHolder, Move, Step
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.devices import DeviceUsage, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict
from hamicommon.events import DeviceHealthEvent, NodeHoldings
from hamicommon.explain.moment import Blob
from hamicommon.grants import Grant

Json = dict[str, Any]
PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]


class AllocationStore(Protocol):
    """The ledger of grants: each call is one transaction with its event and its announcement."""

    async def reserve(self, draft: Draft) -> Change:
        """Takes the cards and writes the allocation as `reserved`.

        Raises: CapacityConflict (its `subject` is the card or quota that refused), Conflict (the
        pod has another live allocation than the one to be replaced), Unavailable.
        """
        ...

    async def enter(self, entry: Entry) -> Change:
        """Writes a grant for a pod that is on its node already, with its token and evidence.

        Where the slices are held already (`Entry.guarded` is False), the cards' ceilings rise to
        what is held and quotas are counted without being asked.
        Raises: CapacityConflict (as `reserve`; unguarded: a card is not on the node), Conflict (the
        pod has a live allocation), Unavailable.
        """
        ...

    async def advance(self, step: Step) -> Change | None:
        """Changes the state if the row still allows it, else returns None and changes nothing.

        A target that is not live gives the cards back. Raises: Conflict, Unavailable.
        """
        ...

    async def move(self, moves: Sequence[Move]) -> tuple[Change, ...] | None:
        """Exchanges cards of bound allocations of one node for those the kubelet really gave.

        All in one transaction: two pods that hold each other's cards change places even where both
        cards are full. None, and nothing changed, when one of them is not live under its token any
        more. Raises: CapacityConflict when the cards can't hold it, Conflict, Unavailable.
        """
        ...

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """Keeps what the pod's annotations must say besides, for as long as the grant is live.

        No step of its history: what the pod holds is as it was. False, and nothing changed, when
        the allocation is not live under this token any more. Raises: Unavailable.
        """
        ...

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """The allocation. Raises: Unavailable."""
        ...

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """The pod's live allocation. Raises: Unavailable."""
        ...


class LedgerReader(Protocol):
    """The ledger as loops and answers read it."""

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """All live allocations, of one node or of all. Raises: Unavailable."""
        ...

    def standing(self) -> AsyncIterator[Sequence[Allocation]]:
        """All live allocations without their containers, some hundreds at a time.

        For comparing many with the API server; whoever acts on one reads it whole. Raises:
        Unavailable.
        """
        ...

    async def overdue(self) -> list[Allocation]:
        """Live allocations whose deadline has passed. Raises: Unavailable."""
        ...

    async def late(self, after_s: float) -> list[Allocation]:
        """Allocations that are still `bound` so long after the binding. Raises: Unavailable."""
        ...

    async def latest_of(self, pod_uid: PodUid) -> Allocation | None:
        """The pod's latest allocation, live or not. Raises: Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCard:
    """A card as the ledger has it."""

    node: NodeName
    usage: DeviceUsage
    version: int


class CardReader(Protocol):
    """Cards of the ledger, for the view."""

    async def tally(self) -> tuple[int, int]:
        """(number of present cards, sum of their versions): equal tallies mean equal cards.

        Versions only grow, and a card that enters has a higher one than any that left.
        """
        ...

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """uuid -> (node, version) of every present card."""
        ...

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """Cards of these nodes, or of all, ordered by node and index."""
        ...

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """How well the cards of these nodes are connected, where their agents measured it."""
        ...


class InventoryStore(Protocol):
    """Nodes and cards as their agents report them."""

    async def record(
        self, inventory: NodeInventory, *, agent_id: str, sequence: int
    ) -> tuple[DeviceHealthEvent, ...] | None:
        """Writes what differs; None when the report is older than what is known.

        Raises: InvalidRequest (a card that another live node holds), Unavailable.
        """
        ...

    async def record_told(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> bool | None:
        """Writes what a Node object tells, for a node without our agent.

        Cards of the vendors in `keep`, and then the pair scores too, stay as they are. True when
        something changed; None when the node's own agent reports, or a later state is known
        already: `sequence` grows within one `node_uid`.
        Raises: InvalidRequest (a card that another live node holds), Unavailable.
        """
        ...

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """Marks exactly these cards of the node as cordoned; True when something changed."""
        ...

    async def mark_gone(self, node: NodeName) -> None:
        """The Node object was deleted: its cards are no longer present."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a pod, from what, and how long it took."""

    pod_uid: PodUid
    namespace: str
    pod_name: str
    outcome: str
    """`placed`, `refused` or `error`."""
    node: NodeName | None
    allocation_id: AllocationId | None
    candidates: int
    request: Mapping[str, object]
    policy: Mapping[str, object]
    reason_counts: Mapping[str, int]
    """Reason word -> number of nodes that gave it."""
    detail: bytes
    """See hamicommon.explain.record.detail_bytes."""
    inventory: Blob | None
    counters: Blob | None
    """The cards it was decided on; None when there were none, or no room to keep them."""
    message: str
    summary: str
    view_version: int
    phase_ms: Mapping[str, float]
    trace_id: str
    decided_at: datetime


class DecisionLog(Protocol):
    """Where decisions are kept."""

    async def record(self, decisions: Sequence[Decision]) -> None:
        """Writes them; an identical repeated refusal only raises its count, and now and then
        brings the cards that are kept with it up to date. Raises: Unavailable."""
        ...

    async def tidy(self, *, keep_days: int) -> int:
        """Drops decisions older than so many days, and cards that no decision refers to; makes the
        partitions of the days to come. Returns how many cards' snapshots went.

        Raises: Unavailable, Conflict.
        """
        ...


class QuotaStore(Protocol):
    """Quotas of namespaces as the ledger guards them."""

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """Sets exactly these limits and counts what is used. Raises: Conflict, Unavailable."""
        ...

    async def limited(self) -> frozenset[str]:
        """Namespaces that have a limit. Raises: Conflict, Unavailable."""
        ...


class DriftJournal(Protocol):
    """Where differences between ledger, pods and nodes are written down."""

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Appends one line. Raises: Unavailable."""
        ...


class NodeLock(Protocol):
    """At most one pod per node is between bind and Allocate."""

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """Waits for the lock; a holder of the same allocation takes it over.

        Raises: Conflict when somebody else still has it after `wait_s`, Unavailable.
        """
        ...

    async def release(self, node: NodeName, token: int) -> bool:
        """Frees the lock if `token` holds it; True when it did. Raises: Unavailable."""
        ...

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Who has it. Raises: Unavailable."""
        ...


class PodApi(Protocol):
    """What we do to pods at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """The pod. Raises: NotFound, Unavailable."""
        ...

    async def annotate(
        self,
        namespace: str,
        name: str,
        *,
        uid: PodUid,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        """One patch, guarded by the uid. Raises: NotFound, Conflict, Unavailable."""
        ...

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: PodUid,
        node: NodeName,
        annotations: Mapping[str, str],
    ) -> None:
        """Binds the pod and annotates it, in one write.

        Raises: NotFound, Conflict (already bound), Unavailable (not known).
        """
        ...


class NodeApi(Protocol):
    """What we do to Node objects at the API server."""

    async def get(self, name: NodeName) -> Json:
        """The node. Raises: NotFound, Unavailable."""
        ...

    async def annotate(
        self, name: NodeName, annotations: Mapping[str, str | None], *, resource_version: str
    ) -> None:
        """One patch of a node that is still at this version; None removes a key.

        Raises: NotFound, Conflict (the node changed), Unavailable.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """An event to be shown on a pod."""

    namespace: str
    name: str
    uid: PodUid
    reason: str
    message: str
    warning: bool
    at: datetime
    """When it happened; it may be shown later."""
    series: str = ""
    """Events of one pod, reason and series are one object, whose message is the latest; empty: one
    object per message."""


class PodEvents(Protocol):
    """Shows events on pods, later and at most so many."""

    def emit(self, event: PodEvent) -> None:
        """Queues the event; drops it when the queue is full. Never waits, never raises."""
        ...


class AgentNotReady(Conflict):
    """The node's agent does not run, or can't take a pod now."""


class NodeWitness(Protocol):
    """What a node's own agent says of who holds devices there."""

    async def holdings(self, node: NodeName) -> NodeHoldings:
        """Reads the books of the node's kubelet.

        Raises: NotFound (no agent of ours runs there), Unavailable (the bus is away, or silence).
        """
        ...


class GrantAnnouncer(Protocol):
    """Tells nodes of their grants."""

    async def expect_ready(self, node: NodeName) -> bool:
        """Asks the node's agent whether it and its kubelet can take a pod now.

        True when it binds late: the next pod need not wait for this one's Allocate. A bus that is
        away proves nothing, and is no reason to wait. Raises: AgentNotReady when the agent says no,
        or does not run.
        """
        ...

    async def granted(self, grant: Grant) -> None:
        """Raises: Unavailable when the bus is away."""
        ...

    async def withdrawn(self, allocation: Allocation, reason: str) -> None:
        """Raises: Unavailable when the bus is away."""
        ...
