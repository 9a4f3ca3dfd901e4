"""Rows of grants that lie, and what puts them right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedRow:
    """A row that was put right, for the drift journal."""

    subject: str
    detail: str


class RowRepairs(Protocol):
    """The ledger's rows of grants, where they contradict what is known otherwise.

    All raise: Conflict, Unavailable.
    """

    async def repair_by_history(self) -> Sequence[RepairedRow]:
        """Gives live rows the state and the pod of their last event, where they have others."""
        ...

    async def put_back(self, allocation_id: AllocationId) -> Sequence[RepairedRow]:
        """The same for one row, live or not; empty where it is as its history has it."""
        ...

    async def repair_names(self) -> Sequence[RepairedRow]:
        """Gives slices of live grants the name and the role of their container's row."""
        ...

    async def repair_deadlines(self, longest_s: float) -> Sequence[RepairedRow]:
        """Lets states end now that have no end, or one further away than any state lasts."""
        ...

    async def last_move(self, allocation_id: AllocationId) -> Mapping[str, Sequence[str]] | None:
        """Cards by container after the grant's last move; None: it was never moved."""
        ...

    async def rewrite(
        self,
        row: Allocation,
        *,
        node: NodeName,
        namespace: str,
        pod_name: str,
        containers: Sequence[ContainerGrant],
        reason: str,
    ) -> bool:
        """Writes the row's node, names and parts again, with an event.

        False, and nothing changed, when the row is another one by now. The counters of its cards
        are for who counts them (`reconcile/counters.py`).
        """
        ...
