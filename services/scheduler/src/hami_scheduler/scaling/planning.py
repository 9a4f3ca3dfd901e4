"""Plan the nodes that waiting pods need: gather the input, and plan in another process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from hamicommon.admission.quota import needs
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import HostRequest
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.scaling.node_types import HostSums, NodeType, TypeEntry, live_groups, node_types
from hamicommon.scaling.planner import (
    ScalePlan,
    Wish,
    node_choice,
    place_wishes,
    places_of,
    wish_of,
)
from hamicommon.simulation.cluster import Cluster
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.rooms import Rooms
from hami_scheduler.placement.group_members import Assembly, GroupMembers
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods

MAX_PLANNED = 1000
"""Maximum pods in one plan; further pods are planned once these have their nodes."""
_PODS_AT_ONCE = 100
"""Number of pods counted before other tasks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleQuestion:
    """Input of a plan, except for the cards."""

    nodes: Sequence[Json]
    asked: Mapping[NodeName, HostRequest]
    """CPU and memory that the pods on each node request."""
    daemons: Mapping[NodeName, HostRequest]
    shapes: Sequence[Wish]
    """Pods of different shapes, one per shape."""
    pods: Sequence[tuple[PodUid, int]]
    """Waiting pods with the index of their shape, in the order of the queue."""
    groups: Mapping[PodUid, str] = field(default_factory=dict)
    """Group of each pod that starts together with other pods."""
    needed: Mapping[str, int] = field(default_factory=dict)
    """Number of pods of each group that must start together."""
    coming: Mapping[NodeName, str] = field(default_factory=dict)
    """Placeholder -> type of the node that it requests."""
    kept: Sequence[NodeType] = ()
    """Types of nodes that existed once."""
    closed: Mapping[str, str] = field(default_factory=dict)
    """Type -> reason why no node of it is added."""
    entries: Sequence[TypeEntry] = ()
    group_labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleAnswer:
    """Plan with pods named by their uids."""

    plan: ScalePlan
    types: Sequence[NodeType]
    hosts: Mapping[NodeName, HostRequest]
    """CPU and memory that the pods of each node request."""


def plan_scaling(
    question: ScaleQuestion, view: ClusterView, held: Collection[PodUid], vendors: Vendors
) -> ScaleAnswer:
    """Plan nodes for the pods, except those in `held`, which have cards in the ledger.

    Raises: InvalidRequest when an entry of the file of node types is wrong.
    """
    live = live_groups(question.nodes, question.daemons, view, question.group_labels)
    groups = {kind.name: kind for kind in (*question.kept, *live)}
    # An entry without cards is about a group that may not have been there yet.
    entries = [entry for entry in question.entries if entry.cards or entry.name in groups]
    names = [each.name for each in vendors]
    types = node_types(groups.values(), question.nodes, entries, vendors=names)
    types = [replace(kind, closed=question.closed.get(kind.name, "")) for kind in types]
    by_name = {kind.name: kind for kind in types}
    wishes = [
        replace(question.shapes[shape], name=uid) for uid, shape in question.pods if uid not in held
    ]
    coming = {name: by_name[kind] for name, kind in question.coming.items() if kind in by_name}
    refused: dict[str, list[str]] = {}
    group_of, given_up = question.groups, set[str]()
    while True:
        places = places_of(question.nodes, question.asked)
        cluster = Cluster(view=deepcopy(view) if question.groups else view, nodes=tuple(places))
        plan = place_wishes(wishes, cluster, places, types, vendors, coming=coming)
        for reason, pods in plan.refused.items():
            named = refused.setdefault(reason, [])
            named.extend(pod for pod in pods if pod not in named)
        fitting = Counter(group_of.get(PodUid(pod), "") for pod in plan.placed)
        torn = {
            group for group in set(group_of.values()) if fitting[group] < question.needed[group]
        } - given_up
        if not torn:
            break
        # Together or not at all: without those that can't start, fewer nodes may do.
        given_up |= torn
        wishes = [wish for wish in wishes if group_of.get(PodUid(wish.name)) not in torn]
    plan = replace(plan, refused=refused)
    requests = {wish.name: wish.request.host for wish in wishes}
    hosts: dict[NodeName, HostRequest] = {}
    for uid, node in plan.placed.items():
        before, more = hosts.get(node, HostRequest()), requests[uid]
        hosts[node] = HostRequest(
            cpu_milli=before.cpu_milli + more.cpu_milli,
            memory_mib=before.memory_mib + more.memory_mib,
        )
    return ScaleAnswer(plan=plan, types=types, hosts=hosts)


@dataclass(eq=False, kw_only=True)
class ScaleQuestions:
    """Gathers the input of plans, in parts between which requests are answered."""

    state: ClusterState
    waiting: WaitingPods
    rooms: Rooms
    members: GroupMembers | None
    """Index of groups; None: the pods of groups are placed separately."""
    our_pods: Mapping[PodUid, JsonMapping]
    all_pods: Callable[[], Iterable[Json]]
    all_nodes: Callable[[], Iterable[Json]]
    vendors: Vendors
    entries: Sequence[TypeEntry]
    group_labels: Sequence[str]
    after_s: float

    def due(self) -> list[WaitingPod]:
        """Return the waiting pods that need nodes, in the order of the queue.

        Not those that are being placed, that others end for, or that a quota keeps waiting.
        """
        found = list[WaitingPod]()
        wanted: dict[str, dict[str, int]] = {}
        for pod in self.waiting.in_order():
            if (
                self.waiting.waits_s(pod.uid) < self.after_s
                or pod.uid not in self.our_pods
                or self.rooms.of(pod.uid) is not None
                or self._is_incomplete(pod.uid)
                or self.state.assumption(pod.uid) is not None
            ):
                continue
            before = wanted.get(pod.namespace, {})
            more = needs(pod.request, self.vendors)
            together = {key: before.get(key, 0) + amount for key, amount in more.items()}
            if self.state.quotas.conflict(pod.namespace, together) is not None:
                continue
            wanted[pod.namespace] = before | together
            found.append(pod)
            if len(found) == MAX_PLANNED:
                break
        return found

    def _assembly(self, uid: PodUid) -> Assembly | None:
        """Return the state of the pod's group; None if the pod may start alone."""
        group = self.members.quorum_group(uid) if self.members is not None else None
        found = self.members.assembly(group) if self.members is not None and group else None
        return found if found is not None and found.needed else None

    def _is_incomplete(self, uid: PodUid) -> bool:
        found = self._assembly(uid)
        return found is not None and len(found.waiting) < found.needed

    async def question(
        self,
        pods: Sequence[WaitingPod],
        *,
        coming: Mapping[NodeName, str],
        leaving_out: Collection[str],
        kept: Sequence[NodeType],
        closed: Mapping[str, str],
    ) -> ScaleQuestion:
        """Gather the input of a plan for these pods.

        `leaving_out`: nodes that have come, and count as `coming` until their cards are known.
        """
        sums = HostSums()
        for number, pod in enumerate(list(self.all_pods()), start=1):
            sums.add(pod)
            if number % _PODS_AT_ONCE == 0:
                await asyncio.sleep(0)
        numbers: dict[Hashable, int] = {}
        shapes: list[Wish] = []
        asked: list[tuple[PodUid, int]] = []
        for waiting in pods:
            choice = node_choice(self.our_pods.get(waiting.uid) or {})
            key = (waiting.shape, waiting.request.host, repr(choice))
            if key not in numbers:
                numbers[key] = len(shapes)
                like = replace(waiting.request, uid=PodUid(""), namespace="", name="")
                shapes.append(wish_of("", *choice, like))
            asked.append((waiting.uid, numbers[key]))
        assemblies = {pod.uid: self._assembly(pod.uid) for pod in pods}
        grouped = {uid: found for uid, found in assemblies.items() if found is not None}
        return ScaleQuestion(
            nodes=[
                _small(node)
                for node in self.all_nodes()
                if node["metadata"]["name"] not in leaving_out
            ],
            asked=sums.all,
            daemons=sums.daemons,
            shapes=shapes,
            pods=asked,
            groups={uid: found.group.key for uid, found in grouped.items()},
            needed={found.group.key: found.needed for found in grouped.values()},
            coming=coming,
            kept=kept,
            closed=closed,
            entries=self.entries,
            group_labels=self.group_labels,
        )


def _small(node: Json) -> Json:
    """Return the fields of a node that planning reads."""
    metadata = node["metadata"]
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": node.get("spec") or {},
        "status": {"allocatable": (node.get("status") or {}).get("allocatable") or {}},
    }
