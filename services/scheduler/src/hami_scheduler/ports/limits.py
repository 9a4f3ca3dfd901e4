"""What nodes found of limits, kept in the ledger; and the end of a pod that is beyond its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from hamicommon.events import LimitCheck, LimitFinding
from hamicommon.k8s.types import Json


class LimitHistory(Protocol):
    """The periods; all raise Unavailable, and Conflict where a lock was not to be had."""

    async def record(
        self, check: LimitCheck, findings: Sequence[LimitFinding], *, received_at: datetime
    ) -> Any:
        """Writes a check down, with a line of drift for each violation that begins.

        Returns `enforcement.periods.PeriodChanges`, or None when a later check is known.
        """
        ...

    async def claim_eviction(
        self, period_id: int, *, per_minute: int, again_after_s: float
    ) -> bool:
        """Whether this replica may end the period's pod now: nobody else has tried lately, and not
        so many were ended in the last minute."""
        ...

    async def note_eviction(self, period_id: int, *, problem: str) -> None:
        """How it went; an empty `problem`: the API server took it."""
        ...

    async def close_silent(self, *, silent_s: float) -> int:
        """Ends open periods that no check has confirmed for so long, when they were last seen."""
        ...


class PodEnder(Protocol):
    """Ends pods at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """The pod as it is now. Raises: NotFound, Unavailable."""
        ...

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        """Writes the pod's conditions, if it has not changed since it was read.

        Raises: NotFound, Conflict, Forbidden, Unavailable.
        """
        ...

    async def delete(self, pod: Json, *, grace_s: int) -> None:
        """Deletes this very pod. Raises: NotFound, Conflict, Forbidden, Unavailable."""
        ...
