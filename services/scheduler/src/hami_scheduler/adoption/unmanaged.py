"""Grants for pods that came to their nodes past us, at the request of the node's agent.

In: `hami.grants.unmanaged.<node>`, asked before such a pod's first container starts, with the cards
that the kubelet gave it. Out: a grant of just those, if the pod is there and the ledger has room:
the guarded UPDATE of every other grant, so never more than a card has. The pod is annotated like
any other; it is then watched, reconciled and released like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Origin,
    Placement,
)
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import ContainerRequest, PodRequest
from hamicommon.errors import CapacityConflict, Conflict, HamiError, InvalidRequest, NotFound
from hamicommon.events import UnmanagedReply, UnmanagedRequest, unmanaged_subject
from hamicommon.grants.grant import grant_of
from hamicommon.k8s.annotations import binding_annotations, node_label
from hamicommon.k8s.pod_owner import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Entry
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.vendors.registry import Vendors
from pydantic import ValidationError

from hami_scheduler.adoption.claims import OUR_VENDOR
from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.draft import draft_of
from hami_scheduler.pod_events import UNMANAGED, Announcer
from hami_scheduler.ports import AllocationStore, PodApi

logger = logging.getLogger(__name__)

SUBJECT = "hami.grants.unmanaged.*"
QUEUE = "scheduler"
REASON = "came past the scheduler; granted what its kubelet gave it"
_ANNOUNCED_S = 600.0


class UnmanagedGrants:
    """Responder of `hami.grants.unmanaged.*`."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        pods: PodApi,
        view: LedgerSnapshotCache,
        vendors: Vendors,
        request_of: Callable[[JsonMapping], PodRequest],
        announcer: Announcer,
        instruments: SchedulerInstruments,
        label_keys: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._pods = pods
        self._view = view
        self._vendors = vendors
        self._request_of = request_of
        self._announcer = announcer
        self._instruments = instruments
        self._label_keys = label_keys

    async def respond(self, subject: str, body: bytes) -> UnmanagedReply:
        """The grant, or why there is none. Raises: InvalidRequest, Unavailable."""
        try:
            asked = UnmanagedRequest.model_validate_json(body)
        except ValidationError as exc:
            raise InvalidRequest(f"request for an unmanaged pod is malformed: {exc}") from exc
        if subject != unmanaged_subject(asked.node):
            raise InvalidRequest(f"a grant on {asked.node} was asked for on {subject}")
        try:
            allocation = await self._grant(asked)
        except (NotFound, InvalidRequest, Conflict) as exc:
            return UnmanagedReply(node=asked.node, refused=str(exc))
        expires_at = datetime.now(UTC) + timedelta(seconds=_ANNOUNCED_S)
        return UnmanagedReply(node=asked.node, grant=grant_of(allocation, expires_at=expires_at))

    async def _grant(self, asked: UnmanagedRequest) -> Allocation:
        """Raises: NotFound, InvalidRequest, Conflict (each reported to the agent), Unavailable."""
        node, uid = NodeName(asked.node), PodUid(asked.pod_uid)
        pod = await self._pods.get(asked.namespace, asked.pod_name)
        facts = facts_of(pod)
        if facts.uid != uid or facts.node != node or facts.phase in TERMINAL_PHASES:
            raise NotFound(f"pod {asked.namespace}/{asked.pod_name} does not run on {node}")
        live = await self._store.live_of(uid)
        if live is not None:
            if live.node != node or live.token is None:
                raise Conflict(f"the pod is {live.state} on {live.node}")
            return live
        request = self._request_of(pod)
        await self._view.refresh()
        cards = {s.usage.device.uuid: s.usage for s in self._view.cluster.cards(node)}
        containers = taken_containers(request, asked, cards)
        self._check_room(request, node, containers)
        owner = owner_of(pod, self._label_keys, stamped=False)
        allocation = await self._enter(request, node, containers, asked, owner)
        await self._mirror(allocation)
        self._announcer.announce(
            PodRef.of(allocation),
            UNMANAGED,
            f"it came to {node} past the scheduler and was granted there what its kubelet gave it",
            warning=False,
        )
        return allocation

    def _check_room(
        self, request: PodRequest, node: NodeName, containers: Sequence[ContainerGrant]
    ) -> None:
        """The engine's reason, where even it finds no room on these cards. Raises: Conflict."""
        taken = {share.uuid for container in containers for share in container.shares}
        cards = [s for s in self._view.cluster.cards(node) if s.usage.device.uuid in taken]
        alone = ClusterView(self._vendors.rules)
        alone.set_node(node, cards, pair_scores={})
        decision = decide(request, alone, candidates=[node])
        if decision.refusal is not None:
            raise Conflict(
                f"the cards that the kubelet gave it can't hold it: "
                f"{decision.refusal.reasons.get(node, 'no room')}"
            )

    async def _enter(
        self,
        request: PodRequest,
        node: NodeName,
        containers: tuple[ContainerGrant, ...],
        asked: UnmanagedRequest,
        owner: PodOwner,
    ) -> Allocation:
        draft = draft_of(
            request,
            Placement(node=node, containers=containers),
            {s.usage.device.uuid: s for s in self._view.cluster.cards(node)},
            self._vendors,
            now=datetime.now(UTC),
            lease_s=0.0,
            replaces=None,
            owner=owner,
        )
        entry = Entry(
            draft=draft,
            state=AllocationState.BOUND,
            origin=Origin.UNMANAGED,
            reason=REASON,
            evidence={"taken": {one.container: list(one.uuids) for one in asked.containers}},
        )
        try:
            change = await self._store.enter(entry)
        except CapacityConflict:
            self._view.doubt(node)
            raise
        self._view.apply(change.counters)
        self._instruments.transitions.labels(AllocationState.BOUND.value).inc()
        return change.allocation

    async def _mirror(self, allocation: Allocation) -> None:
        """As at a binding; who can't write it loses only the mirror."""
        now = datetime.now(UTC)
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=now
        )
        try:
            await self._pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations={**allocation.annotations, **common},
                labels=node_label(allocation.node),
            )
        except HamiError as exc:
            logger.warning("unmanaged pod not annotated", extra={"error": str(exc)})


def taken_containers(
    request: PodRequest, asked: UnmanagedRequest, cards: Mapping[GpuUuid, DeviceUsage]
) -> tuple[ContainerGrant, ...]:
    """What each container asks for, on the cards that the kubelet gave it.

    Raises: InvalidRequest when the pod asks for something else than it was given.
    """
    taken = {one.container: tuple(GpuUuid(uuid) for uuid in one.uuids) for one in asked.containers}
    return tuple(
        ContainerGrant(
            index=index,
            name=container.name,
            role=container.role,
            shares=_shares(container, taken.get(container.name, ()), cards),
        )
        for index, container in enumerate(request.containers)
    )


def _shares(
    container: ContainerRequest, uuids: Sequence[GpuUuid], cards: Mapping[GpuUuid, DeviceUsage]
) -> tuple[DeviceShare, ...]:
    others = [one.vendor for one in container.requests if one.vendor != OUR_VENDOR]
    if others:
        raise InvalidRequest(
            f"container {container.name} asks for {others[0]} devices, which only the scheduler "
            "gives; leave spec.nodeName empty and set spec.schedulerName"
        )
    count = sum(one.count for one in container.requests)
    if count != len(uuids):
        raise InvalidRequest(
            f"container {container.name} asks for {count} cards and its kubelet gave it "
            f"{len(uuids)}; several slots of one card are not one slice each"
        )
    if not uuids:
        return ()
    [request] = container.requests
    shares = []
    for uuid in uuids:
        if uuid not in cards:
            raise InvalidRequest(f"card {uuid} is not in the ledger")
        device = cards[uuid].device
        if device.mode == "mig":
            raise InvalidRequest(f"card {uuid} is cut into MIG slices, which only we place")
        shares.append(
            DeviceShare(
                uuid=uuid,
                vendor=OUR_VENDOR,
                memory_mib=request.memory_mib_on(device.memory_mib),
                core_percent=min(request.core_percent, 100),
            )
        )
    return tuple(shares)
