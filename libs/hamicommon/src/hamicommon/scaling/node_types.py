"""Kinds of nodes that may join a cluster: groups of its nodes, and entries of a file.

A group's nodes carry one label (of a node pool); a new one has the cards that they registered, all
of them healthy and empty. An entry of the file describes nodes that the cluster never had, or gives
a group of the same name its `max` and `price`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import HostRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil, parse_milli
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import Cluster
from hamicommon.vendors.pod_request import host_request

GROUP_LABELS = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "agentpool",
)
"""Labels of node pools; of a node's the first counts."""
UNKNOWN = 2**62
"""CPU or memory of a node that states no amount."""
_OF_ONE_NODE = frozenset({"kubernetes.io/hostname"})
_ENDED = frozenset({"Succeeded", "Failed"})


class Host(NamedTuple):
    """CPU and memory of a node that pods may still ask for."""

    cpu_milli: int = UNKNOWN
    memory_mib: int = UNKNOWN

    def minus(self, asked: HostRequest) -> Host:
        """Return what is left; below zero where it does not suffice."""
        return Host(self.cpu_milli - asked.cpu_milli, self.memory_mib - asked.memory_mib)


_UNBOUNDED = Host()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A kind of node that may join."""

    name: str
    labels: Mapping[str, str]
    cards: tuple[GpuDevice, ...]
    host: Host = _UNBOUNDED
    max_nodes: int | None = None
    """Nodes of the type that there may be, those that exist included; None: no bound."""
    price: float = 1.0
    existing: int = 0


class _Cards(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: PositiveInt
    type: str
    memory: PositiveInt
    vendor: str = "NVIDIA"
    slots: PositiveInt = 10
    cores: PositiveInt = 100
    mode: str = "hami-core"


class TypeEntry(BaseModel):
    """An entry of the file; `memory` of a card is in MiB."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1)
    selector: dict[str, str] = {}
    max: int | None = Field(None, ge=0)
    price: float = Field(1.0, gt=0)
    cpu: int | float | str | None = None
    memory: int | str | None = None
    cards: list[_Cards] = []


def read_types(text: str, source: str) -> list[TypeEntry]:
    """Read the file of node types. Raises: InvalidRequest naming the entry and its mistake."""
    try:
        entries = TypeAdapter(list[TypeEntry]).validate_python(yaml.safe_load(text))
    except yaml.YAMLError as exc:
        raise InvalidRequest(f"{source} is not YAML: {str(exc).replace(chr(10), ' ')}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise InvalidRequest(f"{source}: {place}: {first['msg']}") from exc
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{source} names a type twice: {', '.join(names)}")
    return entries


def node_types(
    nodes: Sequence[Json],
    pods: Sequence[Json],
    cluster: Cluster,
    entries: Iterable[TypeEntry],
    *,
    labels: Collection[str] = GROUP_LABELS,
    vendors: Collection[str],
) -> list[NodeType]:
    """Return the cluster's groups, then the entries that are no group.

    Raises: InvalidRequest when an entry has no cards, or cards of a vendor that is not served.
    """
    types = {each.name: each for each in _groups(nodes, pods, cluster, labels)}
    for entry in entries:
        group = types.get(entry.name)
        if group is not None and not (entry.cards or entry.selector):
            types[entry.name] = replace(group, max_nodes=entry.max, price=entry.price)
            continue
        if not entry.cards:
            raise InvalidRequest(
                f"node type {entry.name} has no cards, and no group of nodes has its name"
            )
        if unknown := {cards.vendor for cards in entry.cards}.difference(vendors):
            raise InvalidRequest(
                f"node type {entry.name}: vendor {', '.join(sorted(unknown))} is not served: "
                f"use {', '.join(vendors)}"
            )
        alike = [node for node in nodes if entry.selector.items() <= labels_of(node).items()]
        types[entry.name] = NodeType(
            name=entry.name,
            labels=entry.selector,
            cards=tuple(_described(entry.cards)),
            host=_amounts(entry.cpu, entry.memory, f"node type {entry.name}"),
            max_nodes=entry.max,
            price=entry.price,
            existing=len(alike) if entry.selector else 0,
        )
    return list(types.values())


def free_host(nodes: Iterable[Json], pods: Iterable[Json]) -> dict[NodeName, Host]:
    """Return each node's allocatable amounts without the requests of the pods on it."""
    free = {NodeName(node["metadata"]["name"]): _allocatable(node) for node in nodes}
    for pod in pods:
        name = (pod.get("spec") or {}).get("nodeName")
        if name in free and (pod.get("status") or {}).get("phase") not in _ENDED:
            free[name] = free[name].minus(host_request(pod))
    return free


def labels_of(node: Json) -> dict[str, str]:
    """Return a node's labels."""
    return node["metadata"].get("labels") or {}


def _groups(
    nodes: Sequence[Json], pods: Sequence[Json], cluster: Cluster, labels: Collection[str]
) -> Iterator[NodeType]:
    members: defaultdict[str, list[Json]] = defaultdict(list)
    for node in nodes:
        own = labels_of(node)
        if key := next((label for label in labels if label in own), None):
            members[own[key]].append(node)
    for name, group in sorted(members.items()):
        first = max(group, key=lambda node: len(cluster.view.cards(node["metadata"]["name"])))
        node_name = NodeName(first["metadata"]["name"])
        cards = [state.usage.device for state in cluster.view.cards(node_name)]
        if not cards:
            continue
        common = set(labels_of(first).items()).intersection(*(labels_of(n).items() for n in group))
        # A DaemonSet's pod comes to a new node, too.
        daemons = [pod for pod in pods if _is_daemon(pod)]
        yield NodeType(
            name=name,
            labels={key: value for key, value in common if key not in _OF_ONE_NODE},
            cards=tuple(replace(card, healthy=True, health_reason="") for card in cards),
            host=free_host([first], daemons)[node_name],
            existing=len(group),
        )


def _is_daemon(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == "DaemonSet" for owner in owners)


def _described(groups: Iterable[_Cards]) -> Iterator[GpuDevice]:
    each = (cards for cards in groups for _ in range(cards.count))
    for index, cards in enumerate(each):
        yield GpuDevice(
            uuid=GpuUuid(str(index)),
            index=index,
            vendor=cards.vendor,
            type=cards.type,
            slots=cards.slots,
            memory_mib=cards.memory,
            core_percent=cards.cores,
            mode=cards.mode,
        )


def _allocatable(node: Json) -> Host:
    given: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    where = f"node {node['metadata']['name']}"
    return _amounts(given.get("cpu"), given.get("memory"), where)


def _amounts(cpu: object, memory: object, where: str) -> Host:
    try:
        return Host(
            UNKNOWN if cpu is None else parse_milli(str(cpu)),
            UNKNOWN if memory is None else parse_ceil(str(memory)) // 2**20,
        )
    except InvalidRequest as exc:
        raise InvalidRequest(f"{where}: {exc}") from exc
