"""Base class of vendors: names, requests of containers, and cards of nodes.

A vendor module translates between Kubernetes objects (raw JSON) and the domain; it holds no state
and does no I/O. Most of a vendor is data, which `Vendor` interprets; the rest overrides methods.
`registry.py` lists the vendors. Their callers are `pod_request.py` (requests), `admission`
(mutation) and the inventory of nodes without our agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, card_id
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import UserAnnotation
from hamicommon.k8s.quantities import parse_int
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts

MAX_CARDS = 1024
"""Maximum number of cards of one vendor on a node that reports only their number."""
STANDARD_RULES = VendorRules()
_EPOCH = datetime.fromtimestamp(0, UTC)

PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]
"""Connection scores of pairs of cards; higher is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """Extended resources of a vendor; empty strings for those that it lacks."""

    count: str
    memory: str = ""
    memory_percent: str = ""
    core: str = ""
    priority: str = ""
    memory_factor: int = 1
    """MiB per unit of `memory`, and of namespaces' quotas on it."""
    alone: tuple[str, ...] = ()
    """Resources that request a card even without `count` (AWS cores)."""

    def all(self) -> tuple[str, ...]:
        """Return all names that are set."""
        names = (self.count, self.memory, self.memory_percent, self.core, self.priority)
        return tuple(name for name in names if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationKeys:
    """Annotations of a vendor; empty strings for those that it lacks."""

    register: str = ""
    """Annotation of a node with its cards."""
    handshake: str = ""
    """Annotation of a node that its device plugin renews to show that it runs."""
    to_allocate: str = ""
    """Annotation of a pod with slices that the node has not handed out yet."""
    allocated: str = ""
    """Annotation of a pod with its slices, permanent."""
    extra: tuple[str, ...] = ()
    """Further annotations of pods that the vendor writes."""
    use_types: str = ""
    """Annotation of users on pods: a comma list of types, one of which a card must have."""
    avoid_types: str = ""
    use_uuids: str = ""
    avoid_uuids: str = ""
    choices: tuple[UserAnnotation[Any], ...] = ()
    """Further annotations of users on pods that the vendor reads."""
    pair_scores: str = ""
    """Annotation of a node with the connection scores of its cards."""
    lock: str = ""
    """Annotation of a node with the lock that the vendor's device plugin expects (protocol 1.0.6).

    The plugin removes the lock after Allocate; empty for a vendor that never locks.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCards:
    """Equal cards of which a Node lists only sums, with the facts that it does not report."""

    name: str
    """Part of a card's uuid, `<node>-<name>-<index>`."""
    memory_mib: int = 0
    """Memory of each card; not used with `cores`."""
    cores: int = 0
    """Cores per card if the Node lists sums of cores and memory.

    0 if it lists the number of cards.
    """
    slots: int = 1
    """Slots per card, as HAMi counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutateResult:
    """Result of `Vendor.mutate` for one container."""

    wants: bool
    """Whether the container asks for a card of this vendor."""
    warnings: tuple[str, ...] = ()


NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """Placed pod, with the facts that vendors write to annotations."""

    node: NodeName
    containers: Sequence[ContainerGrant]
    """Grants of all containers in spec order, also of those without a card."""
    cards: Mapping[GpuUuid, GpuDevice]
    """Cards by uuid, at least those in `containers`."""
    selections: Mapping[str, Selection]
    """Selections by vendor."""
    now: datetime

    @classmethod
    def by_card_ids(
        cls,
        placement: Placement,
        cards: Mapping[GpuUuid, GpuDevice],
        selections: Mapping[str, Selection],
        now: datetime,
    ) -> PlacedPod:
        """Return the placement with the ids that the node's device plugins use.

        `cards` are the node's.
        """
        ids = {uuid: GpuUuid(card_id(uuid)) for uuid in cards}
        containers = placement.containers
        if any(uuid != known for uuid, known in ids.items()):
            cards = {ids[uuid]: replace(card, uuid=ids[uuid]) for uuid, card in cards.items()}
            containers = tuple(
                replace(
                    container,
                    shares=tuple(replace(s, uuid=ids[s.uuid]) for s in container.shares),
                )
                for container in containers
            )
        return cls(
            node=placement.node,
            containers=containers,
            cards=cards,
            selections=selections,
            now=now,
        )

    def shares_of(self, vendor: str) -> list[DeviceShare]:
        """Return the slices of a vendor, in spec order."""
        return [s for c in self.containers for s in c.shares if s.vendor == vendor]


class Vendor:
    """Base class of a vendor, with HAMi's standard behaviour; subclasses state what differs."""

    __slots__ = ()

    config: Any
    """Block of the vendor in the device configuration."""
    default_core_percent: ClassVar[int] = 100
    """Percent of each card's cores for a request without cores."""
    default_memory_mib: ClassVar[int] = 0
    """MiB that a request without memory names in addition to 100 % of a card's memory."""
    limits_only: ClassVar[bool] = False
    """Whether amounts are read only from limits."""
    always_parsed: ClassVar[bool] = False
    """Whether admission also reads requests if limits name nothing."""
    listed_cards: ClassVar[ListedCards | None] = None
    """Description of cards, for a vendor without a register annotation."""
    alive_while_listed: ClassVar[bool] = False
    """Whether the plugin of a vendor without handshake counts as dead if no cards are listed.

    Otherwise it always counts as alive (protocol 1, CheckHealth answers true).
    """

    @property
    def name(self) -> str:
        """Name of the vendor, HAMi's `commonWord` such as `NVIDIA`, used as its key everywhere."""
        raise NotImplementedError

    @property
    def keys(self) -> AnnotationKeys:
        """Names of the vendor's annotations."""
        raise NotImplementedError

    @property
    def rules(self) -> VendorRules:
        """Rules by which the engine judges and chooses cards; the default is the standard loop."""
        return STANDARD_RULES

    @property
    def memory_factor(self) -> int:
        """MiB per unit of the memory resource, as configured, at least 1."""
        return max(getattr(self.config, "memory_factor", 1), 1)

    @property
    def resources(self) -> ResourceNames:
        """Names of the extended resources that the configuration sets."""
        return ResourceNames(
            count=self.config.resource_count_name,
            memory=getattr(self.config, "resource_memory_name", ""),
            core=getattr(self.config, "resource_core_name", ""),
            memory_factor=self.memory_factor,
        )

    @property
    def guarded_variables(self) -> tuple[GuardedVariable, ...]:
        """Variables by which a container could bypass its slice or take cards, each once."""
        return ()

    @property
    def request_folder(self) -> str:
        """Folder in containers whose mounts the runtime takes as requests for cards.

        Empty: none.
        """
        return ""

    def hide_cards(self, container: Json) -> None:
        """Write values that keep the runtime from giving cards to a container that requests none.

        Only if the device configuration wants that (`overwriteEnv`).
        """

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return the container's request; None if it asks for no card of this vendor.

        `annotations` are the pod's. Without memory it asks for the whole card's.

        Raises: InvalidRequest naming container, resource, value and the expected value.
        """
        names = self.resources
        count = amounts.count(container, names.count, limits_only=self.limits_only)
        if not count:
            return None
        memory = self._memory_mib(container, names)
        return DeviceRequest(
            vendor=self.name,
            count=count,
            memory_mib=memory or self.default_memory_mib,
            memory_percent=None if memory else 100,
            core_percent=self._core_percent(container, names),
        )

    def _memory_mib(self, container: Json, names: ResourceNames) -> int:
        factor = names.memory_factor
        return amounts.memory(container, names.memory, factor=factor, limits_only=self.limits_only)

    def _core_percent(self, container: Json, names: ResourceNames) -> int:
        default = self.default_core_percent
        return amounts.cores(container, names.core, default=default, limits_only=self.limits_only)

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Return the cards that the annotations allow, by lists of types and uuids."""

        def entries(key: str) -> tuple[str, ...]:
            return keys.split_list(annotations.get(key, "")) if key else ()

        return Selection(
            use_types=entries(self.keys.use_types),
            avoid_types=entries(self.keys.avoid_types),
            use_uuids=entries(self.keys.use_uuids),
            avoid_uuids=entries(self.keys.avoid_uuids),
        )

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the cards that a Node object reports; empty if it reports none.

        They are in the vendor's register annotation (JSON or CSV, protocol 2.3), or follow from the
        capacities that the kubelet lists.

        Raises: InvalidRequest if the report is malformed or has absurdly many cards.
        """
        if self.listed_cards is not None:
            return self._cards_from_capacity(node, self.listed_cards)
        text = keys.annotations_of(node).get(self.keys.register, "")
        return keys.decode_register(text, vendor=self.name) if text else ()

    def _cards_from_capacity(self, node: Json, cards: ListedCards) -> tuple[GpuDevice, ...]:
        names = self.resources
        memory_mib = cards.memory_mib
        if cards.cores:
            cores = listed_amount(node, "capacity", names.core)
            if not cores:
                return ()
            units = listed_amount(node, "capacity", names.memory)
            count = -(-cores // cards.cores)
            memory_mib = units * names.memory_factor * cards.cores // cores
        else:
            count = listed_amount(node, "capacity", names.count)
        host = str((node.get("metadata") or {}).get("name", ""))
        if count > MAX_CARDS:
            raise InvalidRequest(
                f"node {host}: its capacity is {count} {self.name} cards: at most "
                f"{MAX_CARDS} are wanted"
            )
        return tuple(
            GpuDevice(
                uuid=GpuUuid(f"{host}-{cards.name}-{index}"),
                index=index,
                vendor=self.name,
                type=self.name,
                slots=cards.slots,
                memory_mib=memory_mib,
                core_percent=cards.cores or 100,
                mode="",
            )
            for index in range(count)
        )

    def node_pair_scores(self, node: Json) -> PairScores:
        """Return the connection scores of the node's cards; empty if unknown.

        Raises: InvalidRequest if the annotation is malformed.
        """
        text = keys.annotations_of(node).get(self.keys.pair_scores, "")
        return keys.decode_pair_scores(text) if text else {}

    def pod_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return this vendor's annotations for a placed pod, byte for byte as HAMi writes them.

        Empty if no container has a card of this vendor.
        """
        if not placed.shares_of(self.name):
            return {}
        devices = keys.encode_pod_devices(placed.containers, self.name)
        written = {key: devices for key in (self.keys.to_allocate, self.keys.allocated) if key}
        return written | self.plugin_annotations(placed)

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations that the device plugin reads in addition to the slices."""
        return {}

    def detail_of(self, share: DeviceShare, annotations: Mapping[str, str]) -> Mapping[str, Any]:
        """Return `DeviceShare.detail` of a slice, read from a placed pod's annotations."""
        return share.detail

    def plugin_alive(self, node: Json) -> bool:
        """Return whether the Node shows that its device plugin of this vendor can take pods.

        Called only for nodes without our agent (protocol 1.x "CheckHealth").
        """
        if self.keys.handshake:
            return answers_handshake(node, self.keys.handshake, self.resources.count)
        return not self.alive_while_listed or lists_some(node, "capacity", self.resources.count)

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Fill in defaults at admission, editing container and pod, which the caller owns.

        This method fills in nothing; the container asks for a card if its limits name a count
        other than 0. A second call changes nothing more.

        Raises: InvalidRequest if the container asks for something that can never be granted.
        """
        wants = amounts.asks(container, self.resources.count, limits_only=True)
        if wants or self.always_parsed:
            self.parse_request(container, keys.annotations_of(pod))
        return MutateResult(wants=wants)


def listed_amount(node: Json, part: str, resource: str) -> int:
    """Return the amount of `resource` in the Node's status under `part`; 0 if it has none.

    Args: part: `capacity` or `allocatable`.
    Raises: InvalidRequest if the listed amount is not a whole number.
    """
    amount = ((node.get("status") or {}).get(part) or {}).get(resource, 0)
    value = parse_int(amount)
    if value is None or value < 0:
        name = (node.get("metadata") or {}).get("name", "")
        raise InvalidRequest(
            f"node {name}: {part} of {resource} is {amount}: expected a whole number"
        )
    return value


def lists_some(node: Json, part: str, resource: str) -> bool:
    """Return whether the Node's status lists any of `resource`.

    An invalid amount counts as none.
    """
    try:
        return listed_amount(node, part, resource) > 0
    except InvalidRequest:
        return False


def answers_handshake(node: Json, key: str, resource: str) -> bool:
    """Return whether the node's device plugin answers the handshake (protocol 2.4).

    Any text except `Requesting_<time>` is its answer. HAMi waits 60 s for an answer and then uses
    the kubelet's amounts. Here only the kubelet decides, because a pod could not start anyway if
    the kubelet lists none of the resource.
    """
    if "Requesting" not in keys.annotations_of(node).get(key, ""):
        return True
    return lists_some(node, "allocatable", resource)


def set_env(container: Json, name: str, value: str) -> None:
    """Set a variable in place of all entries of that name."""
    env = container["env"] = container.get("env") or []
    wanted = {"name": name, "value": value}
    places = [place for place, entry in enumerate(env) if entry.get("name") == name]
    for place in reversed(places[1:]):
        del env[place]
    if places:
        env[places[0]] = wanted
    else:
        env.append(wanted)


def indexes(placed: PlacedPod, vendor: str) -> str:
    """Return the indexes of the last container's cards: HAMi overwrites the earlier ones."""
    last = [c.shares for c in placed.containers if any(s.vendor == vendor for s in c.shares)][-1]
    return ",".join(str(placed.cards[s.uuid].index) for s in last if s.vendor == vendor)


def unix_ns(now: datetime) -> str:
    """Return nanoseconds since 1970, exact to the microsecond, as Go writes them."""
    return str((now - _EPOCH) // timedelta(microseconds=1) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedVariable:
    """Environment variable that a container may not set freely.

    A vendor whose node-side parts read a container's variables or mounts declares them;
    `admission/tampering/` judges pods by them.
    """

    name: str
    harmless: Callable[[str], bool]
    """Function that returns whether a literal value has no effect on a slice."""
    effect: str
    """Effect of other values, as part of a sentence: `it switches the limits off`."""
    numbered: bool = False
    """Whether `<name>_0` and so on are read, too."""
    needs: Literal["trust", "priority"] = "trust"
    """Permission that the namespace needs to set it."""
    without_card: bool = False
    """Whether it gives cards to containers that request none, so that every pod is checked."""
    with_whole_cards: bool = False
    """Whether the variable has no effect in a pod that has only whole cards."""
    instead: str | None = None
    """Value that replaces a removed one; None: the variable is removed."""
