"""Grants for pods that are on their nodes already, or come there just now: entered and mirrored.

`resource_claims.py` decides what such a pod gets; here it is written with the
guarded UPDATE of every other grant, so never more than a card has. The pod is annotated like any
other; it is then watched, reconciled and released like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ClaimedSlice,
    ContainerGrant,
    Origin,
    Placement,
)
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import CapacityConflict, Conflict, HamiError, NotFound
from hamicommon.events import ClaimsReply
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.annotations import binding_annotations, node_label
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.ledger.model import Entry
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.placer import draft_of
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuestion:
    """Which pod a node asks about."""

    node: NodeName
    uid: PodUid
    namespace: str
    name: str
    arriving_s: float = 0.0
    """Longest time that its binding takes from now on; 0: it is on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPodGrant:
    """Slices that a running pod is to be granted, and the evidence for them."""

    request: PodRequest
    containers: tuple[ContainerGrant, ...]
    origin: Origin
    reason: str
    evidence: Mapping[str, Any]
    claims: tuple[ClaimedSlice, ...] = ()
    """Slices of the containers that come by ResourceClaims."""


@dataclass(eq=False, kw_only=True)
class RunningPods:
    """Reads such pods and enters their grants."""

    store: AllocationStore
    pods: PodApi
    view: ClusterState
    vendors: Vendors
    instruments: SchedulerInstruments
    label_keys: Sequence[str] = ()

    async def read(self, asked: NodeQuestion) -> Json:
        """The pod, if it runs or arrives on that node. Raises: NotFound, Unavailable."""
        pod = await self.pods.get(asked.namespace, asked.name)
        facts = facts_of(pod)
        there = facts.node == asked.node or (bool(asked.arriving_s) and facts.node is None)
        if facts.uid != asked.uid or not there or facts.phase in TERMINAL_PHASES:
            raise NotFound(f"pod {asked.namespace}/{asked.name} does not run on {asked.node}")
        return pod

    async def granted(self, asked: NodeQuestion) -> Allocation | None:
        """Return the pod's live grant. Raises: Conflict if it is on another node."""
        live = await self.store.live_of(asked.uid)
        if live is not None and (live.node != asked.node or live.token is None):
            raise Conflict(f"the pod is {live.state} on {live.node}")
        return live

    async def cards(self, node: NodeName) -> dict[GpuUuid, DeviceUsage]:
        """The node's cards as the ledger has them now. Raises: Unavailable."""
        await self.view.refresh()
        return {s.usage.device.uuid: s.usage for s in self.view.cluster.cards(node)}

    async def enter(
        self, pod: JsonMapping, asked: NodeQuestion, found: RunningPodGrant
    ) -> Allocation:
        """Write the grant. Raises: CapacityConflict when a card has no room, Unavailable."""
        node = asked.node
        state = AllocationState.BINDING if asked.arriving_s else AllocationState.BOUND
        draft = draft_of(
            found.request,
            Placement(node=node, containers=found.containers),
            {s.usage.device.uuid: s for s in self.view.cluster.cards(node)},
            self.vendors,
            now=datetime.now(UTC),
            lease_s=asked.arriving_s,
            owner=owner_of(pod, self.label_keys, stamped=False),
        )
        entry = Entry(
            draft=draft,
            state=state,
            origin=found.origin,
            reason=found.reason,
            evidence=found.evidence,
            claims=found.claims,
        )
        try:
            change = await self.store.enter(entry)
        except CapacityConflict:
            self.view.doubt(node)
            raise
        self.view.apply(change)
        self.instruments.transitions.labels(state.value).inc()
        if not asked.arriving_s:
            await self._mirror(change.allocation)
        return change.allocation

    async def _mirror(self, allocation: Allocation) -> None:
        """Write the pod's annotations as a binding does; a failure costs only the mirror."""
        now = datetime.now(UTC)
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=now
        )
        try:
            await self.pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations={**allocation.annotations, **common},
                labels=node_label(allocation.node),
            )
        except HamiError as exc:
            logger.warning("Failed to annotate a running pod", extra={"error": str(exc)})


def reply_with(allocation: Allocation) -> ClaimsReply:
    """The answer to the node."""
    return ClaimsReply(node=allocation.node, grant=grant_of(allocation))
