"""The use cases of this service, wired by `bootstrap.py` and called by the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hami_scheduler.binding import Binding
from hami_scheduler.filtering import Filtering
from hami_scheduler.instruments import Instruments
from hami_scheduler.simulating import Simulating

Loop = Callable[[], Awaitable[None]]
Row = dict[str, Any]


class Queries(Protocol):
    """Read-only answers for people; all raise Unavailable when the ledger is away."""

    async def allocations(
        self,
        *,
        node: str | None = None,
        namespace: str | None = None,
        state: str | None = None,
        pod_uid: str | None = None,
        live: bool | None = None,
        pod_name: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Allocations, newest first."""
        ...

    async def nodes(self) -> list[Row]:
        """Nodes with the sums of their cards."""
        ...

    async def devices(self, *, node: str | None = None) -> list[Row]:
        """Cards with capacity and what is granted."""
        ...

    async def history(self, pod_uid: str) -> list[Row]:
        """State changes of the pod's allocations, in order."""
        ...

    async def decisions(self, pod_uid: str) -> list[Row]:
        """The pod's latest decisions, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that the outside can ask for."""

    filtering: Filtering
    binding: Binding
    queries: Queries
    simulating: Simulating
    instruments: Instruments
    readiness: Callable[[], Awaitable[Mapping[str, str]]]
    """What is not ready, with the reason; empty when all is."""
    measure: Callable[[], Awaitable[None]]
    """Brings the gauges up to date."""
    loops: Sequence[tuple[str, Loop]]
    """Background work that must run while the service is up, by name."""
