"""The API server and the nodes as the use cases need them.

All calls are bounded in time and raise only from `hamicommon.errors`; `adapters/` has how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Protocol

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict
from hamicommon.grants.grant import Grant
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import LockHolder


class PodApi(Protocol):
    """Pods at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """The pod. Raises: NotFound, Unavailable."""

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
        """Bind the pod and annotates it, in one write.

        Raises: NotFound, Conflict (already bound), Unavailable (not known).
        """

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        """Write the pod's conditions, if it has not changed since it was read.

        Raises: NotFound, Conflict, Forbidden, Unavailable.
        """

    async def nominate(self, pod: JsonMapping, node: NodeName) -> None:
        """Writes `status.nominatedNodeName`. Raises: NotFound, Conflict, Forbidden, Unavailable."""

    async def evict(self, pod: Json, *, dry_run: bool = False) -> None:
        """Evicts this very pod by the eviction API.

        Raises: NotFound, Conflict (a PodDisruptionBudget forbids it), Forbidden, Unavailable.
        """

    async def delete(self, pod: Json, *, grace_s: int) -> None:
        """Delete this very pod. Raises: NotFound, Conflict, Forbidden, Unavailable."""


class NodeApi(Protocol):
    """Node objects at the API server."""

    async def get(self, name: NodeName) -> Json:
        """The node. Raises: NotFound, Unavailable."""

    async def annotate(
        self, name: NodeName, annotations: Mapping[str, str | None], *, resource_version: str
    ) -> None:
        """One patch of a node that is still at this version; None removes a key.

        Raises: NotFound, Conflict (the node changed), Unavailable.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """An event to be shown on a pod, or on a node."""

    kind: Literal["Pod", "Node"] = "Pod"
    namespace: str
    name: str
    uid: PodUid
    reason: str
    message: str
    warning: bool
    at: datetime
    """When it happened; it may be shown later."""
    series: str = ""
    """Events of one pod, reason and series are one object, whose message is the latest; empty: one
    object per message."""
    once: bool = False
    """An event that is there already with this message is left as it is, not counted up."""


class PodEvents(Protocol):
    """Shows events on pods, later and at most so many."""

    def emit(self, event: PodEvent) -> None:
        """Queues the event; drops it when the queue is full. Never waits, never raises."""


class NodeLock(Protocol):
    """At most one pod per node is between bind and Allocate."""

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """Wait for the lock; a later token of the same allocation takes it over.

        Raises: Conflict when somebody else still has it after `wait_s`, Unavailable.
        """

    async def release(self, node: NodeName, token: int) -> bool:
        """Free the lock if `token` holds it; True when it did. Raises: Unavailable."""

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Return the holder of the lock. Raises: Unavailable."""


class AgentNotReady(Conflict):
    """The node's agent does not run, or can't take a pod now."""


class GrantAnnouncer(Protocol):
    """Publishes grants to their nodes."""

    async def offer(self, grant: Grant) -> bool | None:
        """Ask the node's agent whether it and its kubelet can take the pod now, with its grant.

        Returns whether the node binds it late: then no other pod need wait for its Allocate. None
        if it is unknown: a bus that is unavailable proves nothing, and is no reason to wait.
        Raises: AgentNotReady when the agent refuses or does not run, Unavailable when the grant
        is not known to be on its way.
        """

    async def binds_late(self, node: NodeName) -> bool | None:
        """The same question without a grant, before the first one goes there.

        Returns None if it is unknown. Raises: AgentNotReady.
        """

    async def granted(self, grant: Grant) -> None:
        """Publish the grant to its node. Raises: Unavailable (bus)."""

    async def withdrawn(self, allocation: Allocation, reason: str) -> None:
        """Raises: Unavailable when the bus is unavailable."""
