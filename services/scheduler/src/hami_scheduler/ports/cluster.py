"""Interfaces to the API server and to nodes.

All calls are bounded in time and raise only from `hamicommon.errors`. Implemented in `adapters/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict
from hamicommon.grants.grant import Grant
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import LockHolder


class PodApi(Protocol):
    """Pods at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """Read the pod. Raises: NotFound, Unavailable."""

    async def annotate(
        self,
        pod: PodRef,
        *,
        annotations: Mapping[str, str] = MappingProxyType({}),
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Patch annotations and labels of the pod.

        Raises: NotFound, Conflict, Unavailable.
        """

    async def bind(self, pod: PodRef, node: NodeName, *, annotations: Mapping[str, str]) -> None:
        """Bind the pod and annotate it, in one write.

        Raises: NotFound, Conflict (already bound), Unavailable (not known).
        """

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        """Write the pod's conditions, unless it has changed since it was read.

        Raises: NotFound, Conflict, Forbidden, Unavailable.
        """

    async def nominate(self, pod: JsonMapping, node: NodeName) -> None:
        """Write `status.nominatedNodeName`. Raises: NotFound, Conflict, Forbidden, Unavailable."""

    async def evict(self, pod: Json, *, dry_run: bool = False) -> None:
        """Evict exactly this pod by the eviction API.

        Raises: NotFound, Conflict (a PodDisruptionBudget forbids it), Forbidden, Unavailable.
        """

    async def delete(self, pod: Json, *, grace_s: int) -> None:
        """Delete exactly this pod. Raises: NotFound, Conflict, Forbidden, Unavailable."""


class NodeApi(Protocol):
    """Node objects at the API server."""

    async def get(self, name: NodeName) -> Json:
        """Read the node. Raises: NotFound, Unavailable."""

    async def annotate(
        self, name: NodeName, annotations: Mapping[str, str | None], *, resource_version: str
    ) -> None:
        """Patch annotations of a node that is still at this version; None removes a key.

        Raises: NotFound, Conflict (the node changed), Unavailable.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """Event to be written on a pod, or on a node."""

    kind: Literal["Pod", "Node"] = "Pod"
    pod: PodRef
    """Names of the object; a node's uid is its name, as kubelets have it."""
    reason: str
    message: str
    warning: bool = True
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time at which it happened; it may be written later."""
    series: str = ""
    """Name of the series; events of one pod, reason and series share an object.

    Its message is the latest; empty: one object per message.
    """
    once: bool = False
    """Whether an existing event with this message is left unchanged, not counted up."""


class PodEvents(Protocol):
    """Writer of events on pods, rate limited and in the background."""

    def emit(self, event: PodEvent) -> None:
        """Queue the event, or drop it if the queue is full. Never waits, never raises."""


class NodeLock(Protocol):
    """Lock by which at most one pod per node is between bind and Allocate."""

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """Wait for the lock; a later token of the same allocation takes it over.

        Raises: Conflict when another holder still has it after `wait_s`, Unavailable.
        """

    async def release(self, node: NodeName, token: int) -> bool:
        """Free the lock if `token` holds it; return whether it did. Raises: Unavailable."""

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Return the holder of the lock. Raises: Unavailable."""


class AgentNotReady(Conflict):
    """Error: the node's agent does not run, or can't take a pod now."""


class GrantAnnouncer(Protocol):
    """Publisher of grants to their nodes."""

    async def offer(self, grant: Grant) -> bool | None:
        """Offer the grant: ask the node's agent whether it and the kubelet can take the pod now.

        Returns whether the node binds it late: then no other pod need wait for its Allocate. None
        if it is unknown: a bus that is unavailable proves nothing, and is no reason to wait.
        Raises: AgentNotReady when the agent refuses or does not run, Unavailable when the grant
        is not known to be on its way.
        """

    async def binds_late(self, node: NodeName) -> bool | None:
        """Return whether the node binds late, asking its agent before the first grant.

        Returns None if it is unknown. Raises: AgentNotReady.
        """

    async def announce(self, grant: Grant) -> None:
        """Publish the grant to its node. Raises: Unavailable (bus)."""

    async def withdraw(self, allocation: Allocation, reason: str) -> None:
        """Withdraw the grant at its node. Raises: Unavailable if the bus is."""
