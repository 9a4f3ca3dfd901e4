"""What the query API asks of the ledger (`adapters/postgres/queries.py`) and of the bus."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from hamicommon.bus.dead_letters import DeadLetter
from hamicommon.domain.ids import NodeName
from hamicommon.ledger.granted_cards import PodCard

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
        """The pod's latest decisions, newest first, as they are stored."""
        ...

    async def pods_named(self, namespace: str, name: str) -> list[Row]:
        """Pods that have or had the name (or have it as their uid), latest first."""
        ...

    async def drift(self, *, kind: str | None = None, limit: int = 100) -> list[Row]:
        """Differences that the reconciler found, newest first."""
        ...

    async def broken_promises(self) -> list[Row]:
        """What `hamictl db check` would find: a sentence each."""
        ...

    async def limits(self, pod_uid: str) -> list[Row]:
        """When the pod was not held to its grants, what goes on first."""
        ...

    async def pod_cards(
        self, *, pod_uid: str | None = None, silent: Collection[NodeName] = ()
    ) -> list[PodCard]:
        """The cards that a pod holds, or those of all pods that may be in trouble."""
        ...

    async def snapshots(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Cards that decisions saw, by name."""
        ...

    async def held_at(self, at: datetime, nodes: Sequence[str], namespace: str) -> list[Row]:
        """Slices that pods on these nodes or of this namespace held then."""
        ...

    async def unhealthy_since(self, uuids: Sequence[str], at: datetime) -> dict[str, datetime]:
        """Of cards that were unhealthy then, since when."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """A waiting pod's last decision."""

    reason: str
    """That the most nodes gave; empty: no node did."""
    candidates: int
    """Nodes that kube-scheduler offered."""
    unregistered: int
    """Of those, without a card that is known."""


class Refusals(Protocol):
    """Why pods wait, as the ledger has it; all raise Unavailable when it is away."""

    async def last_refusals(self, uids: Sequence[str]) -> dict[str, LastRefusal]:
        """By pod; one without a decision is left out."""
        ...

    async def quota_room(self) -> dict[tuple[str, str], int]:
        """What is left of each quota, by namespace and resource."""
        ...


class Letters(Protocol):
    """Messages that no service could handle, where the bus keeps them."""

    async def latest(self, limit: int) -> list[DeadLetter]:
        """Newest first. Raises: Unavailable."""
        ...

    async def send_again(self, sequence: int) -> DeadLetter:
        """Publishes it where it came from.

        Raises: NotFound, InvalidRequest when it may not be sent again, Unavailable.
        """
        ...
