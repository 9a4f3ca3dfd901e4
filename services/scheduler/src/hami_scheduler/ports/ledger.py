"""The ledger as the use cases need it: grants, cards, records, answers for people.

All calls are bounded in time and raise only from `hamicommon.errors`; `adapters/postgres` has how.
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
    """The ledger of grants: each write is one transaction with its events and announcements."""

    async def commit(self, commands: Sequence[Command]) -> Sequence[Change | HamiError | None]:
        """Commit commands together; steps that end a grant come before new grants.

        Returns for each command the change, the refusal (as `enter` raises it), or None for a step
        that is not due. The steps of one allocation are made in their order. Entries of one name
        (`Entry.together`) are granted all or none; Conflict is the answer to those that would be.
        Raises: Conflict, Unavailable when none of them was carried out.
        """

    async def begin(self, draft: Draft) -> Change:
        """Take the cards and write the allocation as `binding`, with its fencing token.

        Raises: CapacityConflict (its `subject` is the card that refused), QuotaConflict, Conflict
        (the pod has a live allocation), Unavailable.
        """

    async def enter(self, entry: Entry) -> Change:
        """Write a grant that begins as the entry reports, with its token and evidence.

        If the slices are held already (`Entry.guarded` is False), the cards' ceilings rise to what
        is held, and quotas are counted but not checked. A room (`Entry.room`) must fit without
        its victims, counts beside them, and is refused (Conflict) when one of them has changed.
        Raises: as `begin`; unguarded, CapacityConflict means that a card is not on the node.
        """

    async def advance(self, step: StateStep) -> Change | None:
        """Change the state if the row still allows it; otherwise return None and change nothing.

        A target that is not live gives the cards back. Raises: Conflict, Unavailable;
        CapacityConflict for a room whose cards are not free yet (`reserved` to `binding`).
        """

    async def annotate(
        self, allocation_id: AllocationId, token: int, annotations: Mapping[str, str]
    ) -> bool:
        """Keep what the pod's annotations must have besides, for as long as the grant is live.

        No step of its history: what the pod holds is as it was. False, and nothing changed, when
        the allocation is not live under this token any more. Raises: Unavailable.
        """

    async def get(self, allocation_id: AllocationId) -> Allocation | None:
        """The allocation. Raises: Unavailable."""

    async def live_of(self, pod_uid: PodUid) -> Allocation | None:
        """The pod's live allocation. Raises: Unavailable."""

    async def live(self, node: NodeName | None = None) -> list[Allocation]:
        """All live allocations, of one node or of all. Raises: Unavailable."""

    def standing(self) -> AsyncIterator[Sequence[Allocation]]:
        """All live allocations without their containers, some hundreds at a time.

        For comparing many with the API server; who acts on one reads it whole. Raises:
        Unavailable.
        """

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> Sequence[Allocation]:
        """The live allocations of these pods, without their containers. Raises: Unavailable."""

    async def whole(self, ids: Sequence[AllocationId]) -> Sequence[Allocation]:
        """These allocations with their containers; a few hundred. Raises: Unavailable."""

    async def overdue(self) -> list[Allocation]:
        """Live allocations whose deadline has passed. Raises: Unavailable."""

    async def late(self, after_s: float) -> list[Allocation]:
        """Allocations that are still `bound` so long after the binding. Raises: Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A pod that ends for a room."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    is_evicted: bool
    """Whether the API server has taken its eviction, or it was being deleted before."""
    is_gone: bool
    """Whether its cards are back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoom:
    """A room in the ledger, and who ends for it."""

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
        """Whether its pod can take it."""
        return all(each.is_gone for each in self.victims)


class QuotaStore(Protocol):
    """Quotas of namespaces as the ledger guards them."""

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """Set exactly these limits and count what is used. Raises: Conflict, Unavailable."""

    async def used(self) -> Sequence[QuotaUse]:
        """Every limit with what is used of it. Raises: Unavailable."""


PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]
Mark = tuple[str, int]
"""(agent id, sequence): differs from the one before whenever the agent was heard."""


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

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """Card uuid -> (node, version) of every present card."""

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """Cards of these nodes, or of all, ordered by node and index."""

    async def agent_marks(self) -> Mapping[NodeName, Mark]:
        """The mark of every node with an agent. Raises: Unavailable."""

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """How well the cards of these nodes are connected, where their agents measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInventory:
    """Outcome of one inventory report."""

    changed: bool
    """Some card's row was written."""
    health: tuple[DeviceHealthEvent, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """The reason, by uuid, for each card that was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInventory:
    """Inventory report of a node-agent; `observed_at` is the time at which NATS stored it."""

    inventory: NodeInventory
    agent_id: str
    sequence: int
    repeats: bool = False
    """Whether it equals the agent's previous report, which was recorded; the cards are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedCard:
    """A card whose counters were not the sum of its live grants, and are now."""

    uuid: GpuUuid
    node: NodeName
    detail: str
    is_older: bool
    """The version that it has now is lower than the one before."""


@dataclass(frozen=True, slots=True)
class RepairedSequence:
    """A sequence that was at its end, or behind the rows."""

    name: str
    was: int
    is_now: int


Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """A waiting pod's last decision."""

    reason: str
    """That the most nodes gave; empty: no node did."""
    candidates: int
    """Nodes that kube-scheduler offered."""
    unregistered: int
    """Candidates without a known card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """Decision on a pod with its inputs and its duration."""

    pod_uid: PodUid
    namespace: str
    pod_name: str
    outcome: str
    """`placed`, `refused` or `error`."""
    node: NodeName | None
    allocation_id: AllocationId | None
    kept: bool = False
    """The allocation is one that the pod held before the decision."""
    candidates: int
    request: Mapping[str, object]
    policy: Mapping[str, object]
    reason_counts: Mapping[str, int]
    """Reason -> number of nodes that gave it."""
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
    group_key: str | None = None
    """`group/NAMESPACE/NAME` of the pods that start together; of a decision about all of them also
    `pod_uid`."""
    group_size: int | None = None


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A pod that was refused and, as far as the ledger knows, still waits."""

    pod_uid: PodUid
    is_watched: bool
    """Whether its last refusal is so old that the pod watch must have shown the pod by now."""


class DecisionLog(Protocol):
    """Store of decisions and of the refused pods that wait."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        """Write decisions; a repeated identical refusal or error only raises the count of its row.

        A pod with very many different ones within the hour gets no new rows either. The cards that
        a row keeps are brought up to date now and then. Raises: Unavailable.
        """

    async def arrivals(self, limit: int) -> list[PodRequest]:
        """Return the requests of the latest decisions, newest first, a pod perhaps several times.

        Raises: Unavailable.
        """

    async def tidy(self, *, keep_days: int) -> int:
        """Drop decisions older than so many days, and cards that no decision refers to.

        Makes the partitions of the days to come. Returns how many cards' snapshots went.

        Raises: Unavailable, Conflict.
        """

    async def open_waits(self) -> list[OpenWait]:
        """Refused pods that wait, each once. Raises: Unavailable, Conflict."""

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        """End the wait of each pod, now or, where it is `gone`, as early as it may have been.

        Raises: Unavailable, Conflict.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedRow:
    """A row that was put right, for the drift journal."""

    subject: str
    detail: str


class CallOutcome(StrEnum):
    """Outcome of a call; one that was cut off stays `begun`."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """The caller may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """An operator's call that changes something, or would in no dry run; texts clipped."""

    user: str
    """Named as in Kubernetes' audit log, such as `system:serviceaccount:default:ann`; empty: nobody
    was asked (a local system)."""
    groups: tuple[str, ...] = ()
    address: str
    """That it came from; empty: unknown."""
    verb: str
    """`adopt`, `send-dead-letter`; `METHOD path` of what is none of ours."""
    object: str = ""
    """Object of the call: the number of a letter, or the body."""
