"""Grants in the ledger: written, read, and limited by quotas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import HamiError
from hamicommon.ledger.cards.moves import Move
from hamicommon.ledger.model import BindingClaim, Change, Draft, Entry, ReservationWrite, StateStep


class AllocationStore(Protocol):
    """The ledger of grants: each call is one transaction with its event and its announcement."""

    async def reserve(self, draft: Draft) -> Change:
        """Takes the cards and writes the allocation as `reserved`.

        Raises: CapacityConflict (its `subject` is the card or quota that refused), Conflict (the
        pod has another live allocation than the one to be replaced), Unavailable.
        """
        ...

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> Sequence[Change | HamiError]:
        """Reservations of different pods: those of plain slices in one transaction, each guarded
        as by `reserve`, which makes what could not be made together.

        For each the change, or what `reserve` raised. A claim is carried out with those that go
        together; the others stay `reserved`. Raises: Unavailable, when of none is known whether it
        was written.
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

    async def advance(self, step: StateStep) -> Change | None:
        """Changes the state if the row still allows it, else returns None and changes nothing.

        A target that is not live gives the cards back. Raises: Conflict, Unavailable.
        """
        ...

    async def advance_all(self, steps: Sequence[StateStep]) -> Sequence[bool]:
        """Steps between live states: all of them in one transaction, those of one allocation in
        their order.

        True for each that was done. One that meets a locked row or fails is made by itself, as
        `advance` would. Raises: Unavailable, when of none is known whether it was done.
        """
        ...

    async def claim_all(self, claims: Sequence[BindingClaim]) -> Sequence[Allocation | None]:
        """Hands out tokens to the reservations of different pods: all in one transaction.

        None where the pod has no reservation on the node, or somebody else is at its row.
        Raises: Unavailable.
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

    async def latest_of(self, pod_uid: PodUid) -> Allocation | None:
        """The pod's latest allocation, live or not. Raises: Unavailable."""
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
