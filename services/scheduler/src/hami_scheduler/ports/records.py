"""What is written down for people: decisions, and differences that were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.moment import Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """What was decided about a pod, from what, and how long it took."""

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


class DecisionLog(Protocol):
    """Where decisions are kept."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        """Writes them; an identical repeated refusal or error only raises its count, and now and
        then brings the cards that are kept with it up to date. So does every one of a pod that has
        had very many different ones within the hour. Raises: Unavailable."""
        ...

    async def arrivals(self, limit: int) -> list[PodRequest]:
        """What the pods of the latest decisions asked for, newest first, a pod perhaps several
        times. Raises: Unavailable."""
        ...

    async def tidy(self, *, keep_days: int) -> int:
        """Drops decisions older than so many days, and cards that no decision refers to; makes the
        partitions of the days to come. Returns how many cards' snapshots went.

        Raises: Unavailable, Conflict.
        """
        ...


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A pod that was refused and, as far as the ledger knows, still waits."""

    pod_uid: PodUid
    is_watched: bool
    """Whether its last refusal is so old that the pod watch must have shown the pod by now."""


class WaitLedger(Protocol):
    """Which refused pods wait. Both raise Unavailable, Conflict."""

    async def open_waits(self) -> list[OpenWait]:
        """Each pod once."""
        ...

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        """Ends the wait of each pod, now or, where it is `gone`, as early as it may have been."""
        ...


class DriftJournal(Protocol):
    """Where differences between ledger, pods and nodes are written down."""

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Appends one line. Raises: Unavailable."""
        ...
