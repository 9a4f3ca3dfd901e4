"""Types of nodes that may be added: node groups of the cluster, and entries of a file.

A group's nodes carry one label (of a node pool); a new one has the cards that they registered, all
of them healthy and empty. An entry of the file describes nodes that the cluster never had, or gives
a group of the same name its `max` and `price`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import HostRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_ceil, parse_milli
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.vendors.pod_request import host_request

KARPENTER_POOL = "karpenter.sh/nodepool"
GROUP_LABELS = (
    KARPENTER_POOL,
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "agentpool",
)
"""Labels of node pools; the first label that a node has is used."""
UNKNOWN = 2**62
"""CPU or memory of a node that states no amount."""
HOSTNAME = "kubernetes.io/hostname"
OWN_HOSTNAME = "hami.io/hostname"
"""Label with the host name of a node of Karpenter, which refuses `HOSTNAME` in a pod's affinity."""
_OF_ONE_NODE = frozenset({HOSTNAME, OWN_HOSTNAME})
_CONDITIONS = "node.kubernetes.io/"
"""Prefixes of taints that Kubernetes sets and removes with a node's conditions."""
_PASSING = (
    _CONDITIONS,
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/",
)
"""Prefixes of taints of a single node for a time, not of its pool."""
_ENDED = frozenset({"Succeeded", "Failed"})


class Host(NamedTuple):
    """CPU and memory of a node that pods can still request."""

    cpu_milli: int = UNKNOWN
    memory_mib: int = UNKNOWN

    def minus(self, asked: HostRequest) -> Host:
        """Return the CPU and memory left after `asked`; negative if they do not suffice."""
        return Host(self.cpu_milli - asked.cpu_milli, self.memory_mib - asked.memory_mib)


_UNBOUNDED = Host()


class Taint(NamedTuple):
    """Taint that keeps pods off a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def is_tolerated(self, tolerations: Iterable[Json]) -> bool:
        """Return whether one of a pod's tolerations matches the taint, as in kube-scheduler."""
        return any(
            each.get("effect") in (None, "", self.effect)
            and each.get("key") in (None, "", self.key)
            and (each.get("operator") == "Exists" or (each.get("value") or "") == self.value)
            for each in tolerations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Type of nodes that may be added."""

    name: str
    labels: Mapping[str, str]
    """Labels of the type's nodes, for the nodeSelectors of pods."""
    selector: Mapping[str, str]
    """Labels that no nodes of other types have."""
    cards: tuple[GpuDevice, ...]
    taints: tuple[Taint, ...] = ()
    host: Host = _UNBOUNDED
    max_nodes: int | None = None
    """Maximum number of nodes of the type, including those that exist; None: no limit."""
    price: float = 1.0
    existing: int = 0
    is_described: bool = False
    """Whether the file describes the type's cards."""
    closed: str = ""
    """Reason why no node of the type is added, as text after its name; empty if one may be."""

    def explain_difference(self, cards: Iterable[GpuDevice]) -> str:
        """Return how the cards of a node differ from the type's; empty if they are equal.

        Their health and their mode change, and more memory than described is no loss.
        """
        missing = sorted((_kind_of(card) for card in self.cards), reverse=True)
        found = sorted((_kind_of(card) for card in cards), reverse=True)
        alike = len(missing) == len(found) and all(
            other[:-1] == kind[:-1] and other[-1] >= kind[-1]
            for kind, other in zip(missing, found, strict=True)
        )
        return "" if alike else f"{_stock(found)} in place of {_stock(missing)}"


def _kind_of(card: GpuDevice) -> tuple[str, str, int]:
    return card.vendor, card.type, card.memory_mib


def _stock(cards: Iterable[tuple[str, str, int]]) -> str:
    counted = Counter(f"{kind} of {memory_mib} MiB" for _, kind, memory_mib in cards)
    return ", ".join(f"{number} x {name}" for name, number in counted.items()) or "no card"


class _Taint(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"


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
    """Entry of the file; `memory` of a card is in MiB."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1)
    selector: dict[str, str] = {}
    max: int | None = Field(None, ge=0)
    price: float = Field(1.0, gt=0)
    cpu: int | float | str | None = None
    memory: int | str | None = None
    taints: list[_Taint] = []
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
    groups: Iterable[NodeType],
    nodes: Sequence[Json],
    entries: Iterable[TypeEntry],
    *,
    vendors: Collection[str],
) -> list[NodeType]:
    """Return the types of the cluster's node groups, then the file's entries for other nodes.

    Raises: InvalidRequest when an entry has no cards, or cards of a vendor that is not served.
    """
    types = {each.name: each for each in groups}
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
            selector=entry.selector,
            cards=tuple(_described_cards(entry.cards)),
            taints=tuple(Taint(each.key, each.value, each.effect) for each in entry.taints),
            host=_amounts(entry.cpu, entry.memory, f"node type {entry.name}"),
            max_nodes=entry.max,
            price=entry.price,
            existing=len(alike) if entry.selector else 0,
            is_described=True,
        )
    return list(types.values())


def free_host(nodes: Iterable[Json], asked: Mapping[NodeName, HostRequest]) -> dict[NodeName, Host]:
    """Return each node's allocatable CPU and memory minus the requests of its pods."""
    names = (NodeName(node["metadata"]["name"]) for node in nodes)
    return {
        name: _allocatable(node).minus(asked.get(name, HostRequest()))
        for name, node in zip(names, nodes, strict=True)
    }


class HostSums:
    """CPU and memory that pods request on each node."""

    def __init__(self) -> None:
        self.all: dict[NodeName, HostRequest] = {}
        self.daemons: dict[NodeName, HostRequest] = {}
        """Requests of DaemonSet pods, which a new node gets too."""

    def add(self, pod: Json) -> None:
        """Add a pod's requests if the pod is on a node."""
        name = (pod.get("spec") or {}).get("nodeName")
        if not name or (pod.get("status") or {}).get("phase") in _ENDED:
            return
        asked = host_request(pod)
        owners = pod["metadata"].get("ownerReferences") or ()
        is_daemon = any(owner.get("kind") == "DaemonSet" for owner in owners)
        for sums in (self.all, self.daemons) if is_daemon else (self.all,):
            before = sums.get(name, HostRequest())
            sums[name] = HostRequest(
                cpu_milli=before.cpu_milli + asked.cpu_milli,
                memory_mib=before.memory_mib + asked.memory_mib,
            )


def labels_of(node: Json) -> dict[str, str]:
    """Return a node's labels."""
    return node["metadata"].get("labels") or {}


def taints_of(node: Json) -> tuple[Taint, ...]:
    """Return the taints that keep pods off a node, except those set for its conditions."""
    return tuple(
        Taint(each["key"], each.get("value") or "", each["effect"])
        for each in (node.get("spec") or {}).get("taints") or ()
        if each["effect"] != "PreferNoSchedule" and not each["key"].startswith(_CONDITIONS)
    )


def live_groups(
    nodes: Iterable[Json],
    daemons: Mapping[NodeName, HostRequest],
    view: ClusterView,
    labels: Collection[str] = GROUP_LABELS,
) -> Iterator[NodeType]:
    """Yield the types of the nodes that exist, grouped by the first of `labels` that each has."""
    members: defaultdict[tuple[str, str], list[Json]] = defaultdict(list)
    for node in nodes:
        own = labels_of(node)
        if key := next((label for label in labels if label in own), None):
            members[own[key], key].append(node)
    for (name, key), group in sorted(members.items()):
        first = max(group, key=lambda node: len(view.cards(node["metadata"]["name"])))
        node_name = NodeName(first["metadata"]["name"])
        cards = [state.usage.device for state in view.cards(node_name)]
        if not cards:
            continue
        common = set(labels_of(first).items()).intersection(*(labels_of(n).items() for n in group))
        kept = set(taints_of(first)).intersection(*(taints_of(n) for n in group))
        yield NodeType(
            name=name,
            labels={key: value for key, value in sorted(common) if key not in _OF_ONE_NODE},
            selector={key: name},
            cards=tuple(
                replace(card, uuid=GpuUuid(str(number)), healthy=True, health_reason="")
                for number, card in enumerate(cards)
            ),
            taints=tuple(sorted(each for each in kept if not each.key.startswith(_PASSING))),
            host=free_host([first], daemons)[node_name],
            existing=len(group),
        )


def _described_cards(groups: Iterable[_Cards]) -> Iterator[GpuDevice]:
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
