"""Interfaces to the ledger: grants, cards, records, and answers for people.

All calls, implemented in `adapters/postgres`, are bounded in time and raise only from
`hamicommon.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.devices import DeviceUsage, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import HamiError
from hamicommon.events import DeviceHealthEvent
from hamicommon.explain.record import Blob
from hamicommon.ledger.model import Change, Command, Draft, Entry, QuotaUse, StateStep


class AllocationStore(Protocol):
    """Store of grants; each write is one transaction with its events."""

    async def commit(self, commands: Sequence[Command]) -> Sequence[Change | HamiError | None]:
        """Commit commands together; steps that end a grant come before new grants.

        Returns for each command the change, the refusal (as `enter` raises it), or None for a step
        that is not due. The steps of one allocation are made in their order. Entries of one name
        (`Entry.together`) are granted all or none; Conflict is the answer to those that would be.
        Raises: Conflict, Unavailable when none of them was carried out.
        """

    async def begin(self, draft: Draft) -> Change:
        """Take the cards and write the allocation in state `binding`, with a fencing token.

        Raises: CapacityConflict (its `subject` is the card that refused), QuotaConflict, Conflict
        (the pod has a live allocation), Unavailable.
        """

    async def enter(self, entry: Entry) -> Change:
        """Write a grant as the entry describes it, with token and evidence.

        If the slices are held already (`Entry.guarded` is False), the cards' ceilings rise to what
        is held, and quotas are counted but not checked. A room (`Entry.room`) must fit without
        its victims, counts beside them, and is refused (Conflict) when one of them has changed.
        Raises: as `begin`; unguarded, CapacityConflict means that a card is not on the node.
        """

    async def advance(self, step: StateStep) -> Change | None:
        """Change the state if the row still allows it; otherwise return None.

        A target that is not live gives the cards back. Raises: Conflict, Unavailable;
        CapacityConflict for a room whose cards are not free yet (`reserved` to `binding`).
        """

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """Keep further annotations that the pod must have while the grant is live.

        No step of its history: what the pod holds is as it was. False, and nothing changed, when
        the allocation is not live under this token any more. Raises: Unavailable.
        """

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """Return the allocation. Raises: Unavailable."""

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """Return the pod's live allocation. Raises: Unavailable."""

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """Return all live allocations, of one node or of all. Raises: Unavailable."""

    def standing(self) -> AsyncIterator[Sequence[Allocation]]:
        """Yield all live allocations without containers, some hundreds at a time.

        For comparing many with the API server; before a change, read one whole. Raises:
        Unavailable.
        """

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> Sequence[Allocation]:
        """Return the live allocations of these pods, without containers. Raises: Unavailable."""

    async def whole(self, ids: Sequence[AllocationId]) -> Sequence[Allocation]:
        """Return these allocations with containers; a few hundred at most. Raises: Unavailable."""

    async def overdue(self) -> list[Allocation]:
        """Return live allocations past their deadline. Raises: Unavailable."""

    async def late(self, after_s: float) -> list[Allocation]:
        """Return allocations still `bound` so long after the binding. Raises: Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Pod that ends for a room."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    is_evicted: bool
    """Whether its eviction was accepted, or it was already being deleted."""
    is_gone: bool
    """Whether its cards are free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoom:
    """Room in the ledger, with its victims."""

    id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    node: NodeName
    priority: int
    memory_mib: int
    """Memory that it holds, on all cards."""
    victims: list[Victim] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Return whether its pod can take it."""
        return all(each.is_gone for each in self.victims)


class QuotaStore(Protocol):
    """Store of namespaces' quotas, as the ledger enforces them."""

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """Set exactly these limits, and count their use. Raises: Conflict, Unavailable."""

    async def list_uses(self) -> Sequence[QuotaUse]:
        """Return every limit with its use. Raises: Unavailable."""


PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]
Mark = tuple[str, int]
"""Agent id and sequence number, which differ after each report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCard:
    """Card in the ledger."""

    node: NodeName
    usage: DeviceUsage
    version: int


class CardReader(Protocol):
    """Reader of the ledger's cards."""

    async def tally(self) -> tuple[int, int]:
        """Return the number of present cards and the sum of their versions, to detect differences.

        Versions only grow, and a card that enters has a higher one than any that left.
        """

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """Return card uuid -> (node, version) of every present card."""

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """Return cards of these nodes, or of all, ordered by node and index."""

    async def agent_marks(self) -> Mapping[NodeName, Mark]:
        """Return the mark of every node with an agent. Raises: Unavailable."""

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """Return the connection scores of these nodes' cards, where measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInventory:
    """Result of one inventory report."""

    changed: bool
    """Whether a card's row was written."""
    health: tuple[DeviceHealthEvent, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons by uuid for refused cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInventory:
    """Inventory report of a node-agent; `observed_at` is the time at which NATS stored it."""

    inventory: NodeInventory
    agent_id: str
    sequence: int
    repeats: bool = False
    """Whether it equals the agent's previous, recorded report; then its cards are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedCard:
    """Card whose counters were corrected to the sum of its live grants."""

    uuid: GpuUuid
    node: NodeName
    detail: str
    is_older: bool
    """Whether its version is now lower than before."""


Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """Last decision on a waiting pod."""

    reason: str
    """Reason of most nodes; empty: no node gave one."""
    candidates: int
    """Number of nodes that kube-scheduler offered."""
    unregistered: int
    """Number of those without a known card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """Decision on a pod with its inputs and duration."""

    pod_uid: PodUid
    namespace: str
    pod_name: str
    outcome: str
    """`placed`, `refused` or `error`."""
    node: NodeName | None
    allocation_id: AllocationId | None
    kept: bool = False
    """Whether the pod's existing allocation was reused."""
    candidates: int
    request: Mapping[str, object]
    policy: Mapping[str, object]
    reason_counts: Mapping[str, int]
    """Number of nodes per reason."""
    detail: bytes
    """Encoded details, see hamicommon.explain.record.detail_bytes."""
    inventory: Blob | None
    counters: Blob | None
    """Counters of the cards; None if there were none, or no space to keep them."""
    message: str
    summary: str
    view_version: int
    phase_ms: Mapping[str, float]
    trace_id: str
    decided_at: datetime
    group_key: str | None = None
    """Key `group/NAMESPACE/NAME` of a group; for a decision about all its pods also `pod_uid`."""
    group_size: int | None = None


@dataclass(frozen=True, slots=True)
class OpenWait:
    """Refused pod that still waits, as far as the ledger knows."""

    pod_uid: PodUid
    is_watched: bool
    """Whether its last refusal is so old that the pod watch must have shown the pod."""


class DecisionLog(Protocol):
    """Store of decisions, and of waits of refused pods."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        """Write decisions; a repeated identical refusal or error only raises its row's count.

        A pod with very many different ones within the hour gets no new rows either. The cards that
        a row keeps are brought up to date now and then. Raises: Unavailable.
        """

    async def arrivals(self, limit: int) -> list[PodRequest]:
        """Return the requests of the latest decisions, newest first, some pods repeatedly.

        Raises: Unavailable.
        """

    async def tidy(self, *, keep_days: int) -> int:
        """Delete decisions older than `keep_days`, and cards that no decision refers to.

        Makes the partitions of the days to come. Returns how many cards' snapshots went.

        Raises: Unavailable, Conflict.
        """

    async def open_waits(self) -> list[OpenWait]:
        """Return refused pods that wait, each once. Raises: Unavailable, Conflict."""

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        """End the wait of each pod now, or for `gone` at the earliest possible time.

        Raises: Unavailable, Conflict.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedRow:
    """Repaired row, for the drift journal."""

    subject: str
    detail: str


class CallOutcome(StrEnum):
    """Outcome of a call; an interrupted one stays `begun`."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """The caller lacks the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """Operator's call that changes something, or would without dry run; texts are clipped."""

    user: str
    """Named as in Kubernetes' audit log, such as `system:serviceaccount:default:ann`; empty: not
    authenticated (a local system)."""
    groups: tuple[str, ...] = ()
    address: str
    """Address of the caller; empty: unknown."""
    verb: str
    """Action: `adopt`, `send-dead-letter`, or `METHOD path` for unknown ones."""
    object: str = ""
    """Object of the call: number of a dead letter, or the body."""
