"""Pods, nodes and events at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.k8s.types import Json


class PodApi(Protocol):
    """What we do to pods at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """The pod. Raises: NotFound, Unavailable."""
        ...

    async def annotate(
        self,
        namespace: str,
        name: str,
        *,
        uid: PodUid,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        """One patch, guarded by the uid. Raises: NotFound, Conflict, Unavailable."""
        ...

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: PodUid,
        node: NodeName,
        annotations: Mapping[str, str],
    ) -> None:
        """Binds the pod and annotates it, in one write.

        Raises: NotFound, Conflict (already bound), Unavailable (not known).
        """
        ...


class ClaimApi(Protocol):
    """ResourceClaims at the API server."""

    async def get(self, namespace: str, name: str) -> Json:
        """The claim. Raises: NotFound, Unavailable, Forbidden (we may not read claims)."""
        ...


class TemplateApi(Protocol):
    """ResourceClaimTemplates at the API server."""

    async def create(self, namespace: str, body: Json) -> Json:
        """Makes it; as it is then.

        Raises: Conflict (it is there), Forbidden (the namespace is being deleted), InvalidRequest,
        NotFound (the namespace is gone), Unavailable.
        """
        ...

    async def delete(self, namespace: str, name: str, *, uid: str) -> None:
        """Raises: NotFound, Conflict (another one has the name now), Unavailable."""
        ...


class ClaimWriter(Protocol):
    """What we do to ResourceClaims at the API server."""

    async def set_status(self, claim: Json, status: Json) -> Json:
        """Sets these fields of its status, of the claim as it is given; None removes one. Answers
        what the API server has then.

        Raises: NotFound, Conflict (it changed), Forbidden, InvalidRequest, Unavailable.
        """
        ...


class NodeApi(Protocol):
    """What we do to Node objects at the API server."""

    async def get(self, name: NodeName) -> Json:
        """The node. Raises: NotFound, Unavailable."""
        ...

    async def annotate(
        self, name: NodeName, annotations: Mapping[str, str | None], *, resource_version: str
    ) -> None:
        """One patch of a node that is still at this version; None removes a key.

        Raises: NotFound, Conflict (the node changed), Unavailable.
        """
        ...


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
        ...
