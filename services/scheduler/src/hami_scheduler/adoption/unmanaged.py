"""Grants for pods that came to their nodes past us, at the request of the node's agent.

In: `hami.grants.unmanaged.<node>`, asked before such a pod's first container starts, with the cards
that the kubelet gave it. Out: a grant of just those, if the pod is there and the ledger has room
(`running_pods.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hamicommon.bus.reader import read_of_node
from hamicommon.domain.allocations import Allocation, ContainerGrant, DeviceShare, Origin
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, PodRequest
from hamicommon.errors import Conflict, InvalidRequest, NotFound
from hamicommon.events import UnmanagedReply, UnmanagedRequest
from hamicommon.k8s.types import JsonMapping
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.vendors.registry import Vendors

from hami_scheduler.adoption.claims import OUR_VENDOR
from hami_scheduler.adoption.running_pods import (
    NodeQuestion,
    RunningPodGrant,
    RunningPods,
    reply_with,
)
from hami_scheduler.ledger.cluster_state import ClusterState

SUBJECT = "hami.grants.unmanaged.*"
QUEUE = "scheduler"
REASON = "came past the scheduler; granted what its kubelet gave it"


class UnmanagedGrants:
    """Responder of `hami.grants.unmanaged.*`."""

    def __init__(
        self,
        pods: RunningPods,
        *,
        view: ClusterState,
        vendors: Vendors,
        request_of: Callable[[JsonMapping], PodRequest],
    ) -> None:
        self._pods = pods
        self._view = view
        self._vendors = vendors
        self._request_of = request_of

    async def respond(self, subject: str, body: bytes) -> UnmanagedReply:
        """The grant, or why there is none. Raises: InvalidRequest, Unavailable."""
        asked = read_of_node(UnmanagedRequest, subject, body, "request for an unmanaged pod")
        try:
            return reply_with(await self._grant(asked))
        except (NotFound, InvalidRequest, Conflict) as exc:
            return UnmanagedReply(node=asked.node, refused=str(exc))

    async def _grant(self, asked: UnmanagedRequest) -> Allocation:
        """Raises: NotFound, InvalidRequest, Conflict (each reported to the agent), Unavailable."""
        node = NodeName(asked.node)
        question = NodeQuestion(
            node=node, uid=PodUid(asked.pod_uid), namespace=asked.namespace, name=asked.pod_name
        )
        pod = await self._pods.read(question)
        live = await self._pods.granted(question)
        if live is not None:
            return live
        request = self._request_of(pod)
        cards = await self._pods.cards(node)
        containers = taken_containers(request, asked, cards)
        self._check_room(request, node, containers)
        found = RunningPodGrant(
            request=request,
            containers=containers,
            origin=Origin.UNMANAGED,
            reason=REASON,
            evidence={"taken": {one.container: list(one.uuids) for one in asked.containers}},
        )
        allocation = await self._pods.enter(pod, question, found)
        self._pods.announce(
            allocation,
            f"it came to {node} past the scheduler and was granted there what its kubelet gave it",
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
