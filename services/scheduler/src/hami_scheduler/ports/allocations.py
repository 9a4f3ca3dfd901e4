"""Grants in the ledger: written, read, and limited by quotas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import HamiError
from hamicommon.ledger.cards.moves import Move
from hamicommon.ledger.model import Change, Command, Draft, Entry, QuotaUse, StateStep


class AllocationStore(Protocol):
    """The ledger of grants: each call is one transaction with its events and announcements."""

    async def commit(self, commands: Sequence[Command]) -> Sequence[Change | HamiError | None]:
        """Carry out commands together; steps that end a grant come before new grants.

        For each the change, or why the grant was refused (as `enter` raises it), or None for a step
        that is not due. The steps of one allocation are made in their order.
        Raises: Conflict, Unavailable when none of them was carried out.
        """
        ...

    async def begin(self, draft: Draft) -> Change:
        """Take the cards and write the allocation as `binding`, with its fencing token.

        Raises: CapacityConflict (its `subject` is the card that refused), QuotaConflict, Conflict
        (the pod has a live allocation), Unavailable.
        """
        ...

    async def enter(self, entry: Entry) -> Change:
        """Write a grant that begins as the entry says, with its token and evidence.

        If the slices are held already (`Entry.guarded` is False), the cards' ceilings rise to what
        is held, and quotas are counted but not checked.
        Raises: as `begin`; unguarded, CapacityConflict means that a card is not on the node.
        """
        ...

    async def advance(self, step: StateStep) -> Change | None:
        """Change the state if the row still allows it; otherwise return None and change nothing.

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
        """Keeps what the pod's annotations must have besides, for as long as the grant is live.

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

        For comparing many with the API server; who acts on one reads it whole. Raises:
        Unavailable.
        """
        ...

    async def standing_of(self, pod_uids: Sequence[PodUid]) -> Sequence[Allocation]:
        """The live allocations of these pods, without their containers. Raises: Unavailable."""
        ...

    async def whole(self, ids: Sequence[AllocationId]) -> Sequence[Allocation]:
        """These allocations with their containers; a few hundred. Raises: Unavailable."""
        ...

    async def overdue(self) -> list[Allocation]:
        """Live allocations whose deadline has passed. Raises: Unavailable."""
        ...

    async def late(self, after_s: float) -> list[Allocation]:
        """Allocations that are still `bound` so long after the binding. Raises: Unavailable."""
        ...


class AllocationLedger(AllocationStore, LedgerReader, Protocol):
    """The ledger of grants, written and read."""


class QuotaStore(Protocol):
    """Quotas of namespaces as the ledger guards them."""

    async def set_limits(self, namespace: str, limits: Mapping[str, int]) -> None:
        """Sets exactly these limits and counts what is used. Raises: Conflict, Unavailable."""
        ...

    async def limited(self) -> frozenset[str]:
        """Namespaces that have a limit. Raises: Conflict, Unavailable."""
        ...

    async def used(self) -> Sequence[QuotaUse]:
        """Every limit with what is used of it. Raises: Unavailable."""
        ...
