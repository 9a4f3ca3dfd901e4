"""Plan of nodes for waiting pods: each pod is placed on an existing or on a new node.

Pods are placed in the order of their priority and age, and each keeps its place. A pod that fits
nowhere adds a node of the type with the least price per waiting pod that fits on it. Besides cards,
a node's CPU, memory, labels (nodeSelector) and taints are checked; quotas and affinity are not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from hamicommon.admission.filling import fill_in
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import HostRequest, PodRequest, Policy
from hamicommon.errors import InvalidRequest
from hamicommon.explain.sentences import count_noun, list_values, refusal_sentence, stock_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.k8s.validation import check_pod, metadata_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import best_of, feasible
from hamicommon.scaling.node_types import (
    GROUP_LABELS,
    Host,
    HostSums,
    NodeType,
    Taint,
    TypeEntry,
    free_host,
    labels_of,
    live_groups,
    node_types,
    taints_of,
)
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.planner import take
from hamicommon.vendors.pod_request import DEFAULT_POLICY, pod_request
from hamicommon.vendors.registry import Vendors

PODS_NAMED = 5
PODS_OF_A_NODE = 110
"""Maximum pods that are tried on a new node to compare types: the kubelet's default of pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """Nodes to add, and the node of each pod."""

    opened: Mapping[NodeName, NodeType]
    """New nodes (`TYPE/NUMBER`) in the order in which they were added."""
    placed: Mapping[str, NodeName]
    """Pod (`NAMESPACE/NAME`) -> node, in the order of planning."""
    refused: Mapping[str, Sequence[str]]
    """Reason -> pods that fit on no node of any type."""
    problems: Sequence[str] = ()
    """Objects that could not be read and were left out."""

    def as_json(self) -> Json:
        """Return the plan as JSON: nodes by type, pods on existing nodes, and refused pods."""
        kept = [
            {"pod": pod, "node": node}
            for pod, node in self.placed.items()
            if node not in self.opened
        ]
        refused = [{"reason": why, "pods": list(pods)} for why, pods in self.refused.items()]
        answer = {"nodes": list(self._by_type()), "placed": kept, "refused": refused}
        return answer | {"problems": list(self.problems)}

    def sentences(self) -> Iterator[str]:
        """Yield the sentences that explain the plan."""
        answer = self.as_json()
        if not self.placed and not self.refused:
            yield "No pod waits for a card."
        if kept := answer["placed"]:
            pods = _pods([each["pod"] for each in kept])
            yield f"{pods} {'fits' if len(kept) == 1 else 'fit'} on the nodes that exist"
        for each in answer["nodes"]:
            yield f"{count_noun(each['count'], 'node')} of {each['type']} for {_pods(each['pods'])}"
        for each in answer["refused"]:
            verb = "fits" if len(each["pods"]) == 1 else "fit"
            yield f"{_pods(each['pods'])} {verb} no type: {each['reason']}"

    def _by_type(self) -> Iterator[Json]:
        for kind in {each.name: each for each in self.opened.values()}.values():
            nodes = {node for node, each in self.opened.items() if each.name == kind.name}
            pods = [pod for pod, node in self.placed.items() if node in nodes]
            price = kind.price * len(nodes)
            yield {"type": kind.name, "count": len(nodes), "price": price, "pods": pods}


def _pods(names: Sequence[str]) -> str:
    return f"{count_noun(len(names), 'pod')} ({list_values(names, PODS_NAMED)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Pod that waits for a node (wish), with its request."""

    name: str
    request: PodRequest
    selector: Mapping[str, str]
    tolerations: Sequence[Json]
    shape: Hashable
    """Key that is equal for pods that fit on the same nodes."""


@dataclass(slots=True)
class HostPlace:
    """Labels, taints, CPU and memory of a node: all facts that decide on a pod except cards."""

    labels: Mapping[str, str]
    taints: Sequence[Taint]
    host: Host


def is_waiting(pod: Json) -> bool:
    """Return whether kube-scheduler would bind the pod now if it fitted."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    ends = (pod.get("metadata") or {}).get("deletionTimestamp")
    bound = spec.get("nodeName") or spec.get("schedulingGates") or ends
    return not bound and status.get("phase", "Pending") == "Pending"


def plan_nodes(
    nodes: Sequence[Json],
    pods: Sequence[Json],
    new_pods: Sequence[Json],
    entries: Iterable[TypeEntry],
    vendors: Vendors,
    *,
    group_labels: Sequence[str] = GROUP_LABELS,
    defaults: Policy = DEFAULT_POLICY,
) -> ScalePlan:
    """Plan the nodes to add for the cluster's waiting pods and for `new_pods`.

    Pods that ask for no card are left out, cordoned nodes take none.

    Raises: InvalidRequest if an object is not a valid Node or Pod, or an entry is wrong.
    """
    asking = [*filter(is_waiting, pods), *new_pods]
    cluster = read_cluster(nodes, pods, vendors, asking=asking)
    sums = HostSums()
    for pod in pods:
        sums.add(pod)
    groups = live_groups(nodes, sums.daemons, cluster.view, group_labels)
    types = node_types(groups, nodes, entries, vendors=[vendor.name for vendor in vendors])
    refused: defaultdict[str, list[str]] = defaultdict(list)
    wishes = list(_wishes(asking, vendors, defaults, refused))
    found = place_wishes(wishes, cluster, places_of(nodes, sums.all), types, vendors)
    for reason, names in found.refused.items():
        refused[reason].extend(names)
    return replace(found, refused=refused)


def places_of(
    nodes: Iterable[Json], asked: Mapping[NodeName, HostRequest]
) -> dict[NodeName, HostPlace]:
    """Return the schedulable nodes; `asked`: CPU and memory that pods on each node request."""
    taking = [node for node in nodes if not (node.get("spec") or {}).get("unschedulable")]
    free = free_host(taking, asked)
    return {
        name: HostPlace(labels_of(node), taints_of(node), free[name])
        for name, node in zip(free, taking, strict=True)
    }


def place_wishes(
    wishes: Sequence[Wish],
    cluster: Cluster,
    places: Mapping[NodeName, HostPlace],
    types: Sequence[NodeType],
    vendors: Vendors,
    *,
    coming: Mapping[NodeName, NodeType] | None = None,
) -> ScalePlan:
    """Place the pods in order on existing nodes, then on nodes already requested, then on new ones.

    Requested nodes are used in order, each once the pods need it, so the last ones have no pods if
    fewer are needed. `cluster.view` is filled in the process.
    """
    live, opening = _Nodes(cluster, places), _Opening(types, vendors, coming or {})
    refused: defaultdict[str, list[str]] = defaultdict(list)
    placed: dict[str, NodeName] = {}
    for number, wish in enumerate(wishes):
        node = live.place(wish)
        if node is None and (new := opening.next_node(wish, wishes[number:])) is not None:
            live.add(*new)
            node = live.place(wish)
        if node is None:
            refused[opening.explain(wish)].append(wish.name)
        else:
            placed[wish.name] = node
    return ScalePlan(
        opened=opening.opened, placed=placed, refused=refused, problems=cluster.problems
    )


def _wishes(
    pods: Iterable[Json], vendors: Vendors, defaults: Policy, refused: Mapping[str, list[str]]
) -> Iterator[Wish]:
    """Yield a `Wish` for each pod that requests cards, in kube-scheduler's queue order."""
    for pod in sorted(pods, key=_turn):
        metadata = metadata_of(pod)
        name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name', '')}"
        admitted = deepcopy(pod)
        try:
            check_pod(pod)
            if not fill_in(admitted, vendors)[0]:
                continue
            request = pod_request(admitted, vendors, defaults)
        except InvalidRequest as exc:
            refused[str(exc)].append(name)
            continue
        yield wish_of(name, *node_choice(admitted), request)


def wish_of(
    name: str, selector: Mapping[str, str], tolerations: Sequence[Json], request: PodRequest
) -> Wish:
    """Return the `Wish` of a pod with this node selector, these tolerations and this request."""
    parts = (request.containers, request.selections, request.policy, request.host)
    return Wish(
        name=name,
        request=request,
        selector=selector,
        tolerations=tolerations,
        shape=repr((*parts, selector, tolerations)),
    )


def node_choice(pod: JsonMapping) -> tuple[Mapping[str, str], Sequence[Json]]:
    """Return the nodeSelector and the tolerations of a pod."""
    spec = pod.get("spec") or {}
    return spec.get("nodeSelector") or {}, spec.get("tolerations") or ()


def _turn(pod: Json) -> tuple[int, str]:
    # A pod that does not exist yet is the youngest.
    created = metadata_of(pod).get("creationTimestamp")
    priority = (pod.get("spec") or {}).get("priority") or 0
    return -priority, str(created) if created else "~"


class _Nodes:
    """Nodes on which pods are placed one after the other."""

    def __init__(self, cluster: Cluster, places: Mapping[NodeName, HostPlace]) -> None:
        self._cluster = cluster
        self._places = dict(places)
        self._names = list(places)
        self._offers: defaultdict[Hashable, _Offer] = defaultdict(_Offer)
        """Shape -> nodes that may fit pods of the shape."""

    def add(self, name: NodeName, kind: NodeType) -> None:
        """Add an empty node of the type; the links between its cards are unknown."""
        cards = [replace(card, uuid=GpuUuid(f"{name}/{card.uuid}")) for card in kind.cards]
        states = [CardState(DeviceUsage(device=card), 1) for card in cards]
        self._cluster.view.set_node(name, states)
        self._places[name] = HostPlace(kind.labels, kind.taints, kind.host)
        self._names.append(name)

    def place(self, wish: Wish) -> NodeName | None:
        """Place the pod on a node and count its cards; None if it fits on no node."""
        view, offer = self._cluster.view, self._offers[wish.shape]
        offer.nodes += [
            name for name in self._names[offer.seen :] if not _obstacle_of(wish, self._places[name])
        ]
        offer.seen = len(self._names)
        while True:
            rows, _ = view.rows_of(offer.nodes)
            placement = best_of(wish.request, view, rows) if len(rows) else None
            if placement is None:
                # Free amounts of nodes only decrease.
                offer.nodes.clear()
                return None
            place = self._places[placement.node]
            if not _obstacle_of(wish, place):
                break
            offer.nodes.remove(placement.node)
        take(self._cluster, placement.node, placement.containers)
        place.host = place.host.minus(wish.request.host)
        return placement.node


@dataclass(slots=True)
class _Offer:
    nodes: list[NodeName] = field(default_factory=list)
    seen: int = 0
    """Number of nodes that were checked."""


class _Opening:
    """Choice of the next node to add."""

    def __init__(
        self, types: Sequence[NodeType], vendors: Vendors, coming: Mapping[NodeName, NodeType]
    ) -> None:
        self._types = {NodeName(kind.name): kind for kind in types}
        self._vendors = vendors
        self._samples = ClusterView(vendors.rules)
        self._add_to(self._samples, types)
        self.opened: dict[NodeName, NodeType] = {}
        self._unused = dict(coming)
        """Requested nodes that no pod has needed yet."""
        self._coming = Counter(kind.name for kind in coming.values())
        self._chosen: dict[Hashable, NodeType] = {}
        self._fitting: dict[tuple[Hashable, str], bool] = {}

    def next_node(self, wish: Wish, rest: Sequence[Wish]) -> tuple[NodeName, NodeType] | None:
        """Return a requested node that fits the pod, or a new one; None if it fits on no type.

        `rest`: the pod and those after it, by which the type of a new node is chosen.
        """
        for name, kind in self._unused.items():
            if self._fits(wish, kind):
                del self._unused[name]
                return name, kind
        chosen = self._choose(wish, rest)
        if chosen is None:
            return None
        name = NodeName(f"{chosen.name}/{self._count_opened(chosen) + 1}")
        self.opened[name] = chosen
        return name, chosen

    def _fits(self, wish: Wish, kind: NodeType) -> bool:
        key = wish.shape, kind.name
        if key not in self._fitting:
            self._fitting[key] = self._count(kind, [wish]) == 1
        return self._fitting[key]

    def _choose(self, wish: Wish, rest: Sequence[Wish]) -> NodeType | None:
        """Return the type with the lowest price per pod of `rest`, which begins with the pod.

        It is chosen once for all equal pods, as long as the type may have more nodes.
        """
        chosen = self._chosen.get(wish.shape)
        if chosen is not None and not self._obstacle(wish, chosen):
            return chosen
        names = [name for name, kind in self._types.items() if not self._obstacle(wish, kind)]
        fitting = feasible(wish.request, self._samples, names).placements if names else {}
        kinds = [kind for name, kind in self._types.items() if name in fitting]
        if len(kinds) < 2:
            return kinds[0] if kinds else None
        best = min(kinds, key=lambda kind: (kind.price / self._count(kind, rest), kind.name))
        self._chosen[wish.shape] = best
        return best

    def explain(self, wish: Wish) -> str:
        """Return why the pod fits on no type of node."""
        if not self._types:
            return "no node type is known; describe some in a file (--types)"
        found = feasible(wish.request, self._samples)
        if found.placements:
            kinds = [self._types[name] for name in found.placements]
            return "; ".join(f"{kind.name} {self._obstacle(wish, kind)}" for kind in kinds)
        cards = [card for kind in self._types.values() for card in kind.cards]
        tables = found.refusal.shortfalls.tables
        return refusal_sentence(wish.request, tables, stock_of(cards), candidates=len(self._types))

    @staticmethod
    def _add_to(view: ClusterView, kinds: Iterable[NodeType]) -> _Nodes:
        nodes = _Nodes(Cluster(view=view, nodes=()), {})
        for kind in kinds:
            nodes.add(NodeName(kind.name), kind)
        return nodes

    def _obstacle(self, wish: Wish, kind: NodeType) -> str:
        nodes = kind.existing + self._count_opened(kind)
        if kind.max_nodes is not None and nodes >= kind.max_nodes:
            return f"is at its max of {count_noun(kind.max_nodes, 'node')}"
        if kind.closed:
            return kind.closed
        return _obstacle_of(wish, HostPlace(kind.labels, kind.taints, kind.host))

    def _count_opened(self, kind: NodeType) -> int:
        return self._coming[kind.name] + sum(each is kind for each in self.opened.values())

    def _count(self, kind: NodeType, rest: Sequence[Wish]) -> int:
        """Count the pods of `rest` that fit on one node of the type."""
        one = self._add_to(ClusterView(self._vendors.rules), [kind])
        return sum(one.place(wish) is not None for wish in rest[:PODS_OF_A_NODE])


def _obstacle_of(wish: Wish, place: HostPlace) -> str:
    """Return why a node does not fit the pod apart from its cards; empty if it does."""
    if not wish.selector.items() <= place.labels.items():
        wanted = ", ".join(f"{key}={value}" for key, value in wish.selector.items())
        return f"does not have the labels of its nodeSelector ({wanted})"
    taint = next((each for each in place.taints if not each.is_tolerated(wish.tolerations)), None)
    if taint is not None:
        return f"has the taint {taint.key}, which the pod does not tolerate"
    host, asked = place.host, wish.request.host
    left = host.minus(asked)
    if left.cpu_milli < 0:
        has, wants = host.cpu_milli / 1000, asked.cpu_milli / 1000
        return f"has {has:g} CPU and the pod wants {wants:g}"
    if left.memory_mib < 0:
        return f"has {host.memory_mib} MiB of memory and the pod wants {asked.memory_mib}"
    return ""
