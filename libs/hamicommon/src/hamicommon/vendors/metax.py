"""MetaX cards: whole cards, the vendor `Metax-GPU` (protocol 1.7), or slices, `Metax-SGPU` (1.8).

The node's plugin may register what a choice of n whole cards costs or yields in topology; that goes
into `GpuDevice.info` of every card and from there into the node's score.

A pod that asks for slices may belong to a class: `online` pods are recorded without cores and may
share a card only with other pods of a class, `offline` ones keep away from cards with an online
pod. Pods without a class and offline ones have a QoS policy, which all slices of a card share.
Both of a slice's pod are in `DeviceShare.detail`, and so in `DeviceUsage.holdings` (the policy is
empty for one with all cores). HAMi keeps the policy in a cache until the node reports it; here it
is as lasting as the slice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hamicommon.clipping import clip
from hamicommon.device_config import INT32_MAX, MetaxConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import NODE_LOCK, annotations_of, is_true
from hamicommon.k8s.pod_annotations import UserAnnotation, choice, flag, one_of
from hamicommon.k8s.quantities import canonical, parse_int
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import PARTIAL, REASONS, Rule
from hamicommon.placement.vendor_policy import (
    Chosen,
    Need,
    NodeAsk,
    NotChosen,
    VendorRules,
    standard_need,
)
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    ListedCards,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    unix_ns,
)

NODE_TOPOLOGY = {
    "binpack": "metax-tech.com/gpu.topology.losses",
    "spread": "metax-tech.com/gpu.topology.scores",
}
"""Annotation of a node that each node policy reads: JSON, number of cards -> value."""
BEST_SCORE = 2000


def topology_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Return 2000 minus the node's value for this many cards; 0 if it has none for the policy."""
    values = before[0].device.info.get(NODE_TOPOLOGY.get(node_policy, "")) if before else None
    if values is None:
        return 0.0
    cards = sum(len(shares) for shares in containers)
    return float(BEST_SCORE - values.get(str(cards), 0))


@dataclass(frozen=True, slots=True)
class MetaxGpu(Vendor):
    """Vendor `Metax-GPU`, whose cards are granted whole."""

    config: MetaxConfig

    name = "Metax-GPU"
    keys = AnnotationKeys(
        to_allocate="hami.io/metax-gpu-devices-to-allocate",
        allocated="hami.io/metax-gpu-devices-allocated",
    )
    rules = VendorRules(same_card=True, scorer=topology_score)
    # The node reports no memory.
    listed_cards = ListedCards(name="metax", memory_mib=65536)
    alive_while_listed = True

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return as many cards as the kubelet lists, with the node's topology if registered.

        Raises: InvalidRequest when the capacity is no whole number.
        """
        cards = Vendor.node_devices(self, node)
        written = annotations_of(node)
        info = {key: _values(written[key]) for key in NODE_TOPOLOGY.values() if key in written}
        return tuple(replace(card, info=info) for card in cards) if info else cards


def _values(text: str) -> dict[str, int]:
    """Parse the annotation's value per number of cards; empty if malformed, as in HAMi."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    is_table = isinstance(found, dict) and all(isinstance(each, int) for each in found.values())
    return found if is_table else {}


NAME = "Metax-SGPU"

CLASS, QOS, TOPOLOGY = "class", "qos", "topology"
"""Traits of a selection; the first two are details of a slice, too."""
ONLINE, OFFLINE = "online", "offline"

WEIGHT = 10000
"""Factor by which HAMi multiplies this vendor's score of a node."""
WHOLE = 100
ZONE_PAIR = 10
"""Score of two cards in one link zone."""

_UNHEALTHY = "CardUnhealthy"
"""HAMi's reason for an unhealthy card of this vendor."""


def need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return the standard need; online pods take no cores."""
    taken = standard_need(request, selection, card)
    return taken._replace(core=0) if selection.traits.get(CLASS) == ONLINE else taken


def choose_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose cards that pass every rule, the best by class and zone."""
    refused: dict[GpuUuid, Rule] = {}
    candidates: list[DeviceUsage] = []
    for usage, rule in zip(ask.cards, ask.rules, strict=True):
        refusal = _refusal(ask, usage, rule)
        if refusal is None:
            candidates.append(usage)
        else:
            refused[usage.device.uuid] = refusal
    count = ask.request.count
    if len(candidates) < count:
        names = (
            _UNHEALTHY if rule is Rule.NOT_HEALTHY else REASONS[rule] for rule in refused.values()
        )
        return NotChosen(reasons=Counter([*names, *[PARTIAL] * len(candidates)]), refused=refused)
    picked = candidates if len(candidates) == count else _best(ask, candidates)
    chosen = Chosen.of(ask, (usage.device for usage in picked), need)
    return Chosen(
        shares=tuple(
            replace(share, detail=detail_of(ask.selection, share.core_percent))
            for share in chosen.shares
        )
    )


def _refusal(ask: NodeAsk, usage: DeviceUsage, rule: Rule) -> Rule | None:
    """Return the first rule that refuses the card; None if none does."""
    pod_class = ask.selection.traits.get(CLASS, "")
    if not usage.device.healthy:
        return Rule.NOT_HEALTHY
    if not _class_fits(usage, pod_class):
        return Rule.POD_CLASS
    cores = need(ask.request, ask.selection, usage.device).core
    if pod_class != ONLINE and not _qos_fits(usage, ask.selection.traits.get(QOS, ""), cores):
        return Rule.QOS
    if rule != Rule.FITS:
        return rule
    return None if pod_class == ONLINE else _cores_refusal(usage, cores)


def _class_fits(usage: DeviceUsage, pod_class: str) -> bool:
    if usage.used_slots == 0:
        return True
    online, offline = _tasks(usage)
    if bool(online or offline) != bool(pod_class):
        return False
    return not (pod_class == OFFLINE and online)


def _qos_fits(usage: DeviceUsage, policy: str, cores: int) -> bool:
    """Return whether slices on the card have the same QoS policy, or the card has no slices.

    The policy that the node reports for the card is older than its slices: HAMi keeps the policy
    that it gave in a cache until the node reports the same (protocol 1.8).
    """
    if usage.used_slots == 0 or cores == WHOLE:
        return True
    return all(holding.get(QOS, policy) == policy for holding in usage.holdings)


def _cores_refusal(usage: DeviceUsage, cores: int) -> Rule | None:
    """Return the rule of cores that refuses the card, if any; HAMi skips these for online pods."""
    whole = usage.device.core_percent
    if whole - usage.used_core_percent < cores:
        return Rule.CORES
    if whole == WHOLE and cores == WHOLE and usage.used_slots > 0:
        return Rule.EXCLUSIVE
    if whole and usage.used_core_percent == whole and cores == 0:
        return Rule.CORES_EXHAUSTED
    return None


def _tasks(usage: DeviceUsage) -> tuple[int, int]:
    """Return the numbers of online and offline slices on the card."""
    classes = Counter(holding.get(CLASS) for holding in usage.holdings)
    return classes[ONLINE], classes[OFFLINE]


def detail_of(selection: Selection, core_percent: int) -> dict[str, str]:
    """Return the detail of a slice: the pod's class, and its policy unless it has all cores."""
    policy = "" if core_percent == WHOLE else selection.traits.get(QOS, "")
    kept = {CLASS: selection.traits.get(CLASS, ""), QOS: policy}
    return {name: value for name, value in kept.items() if value}


def _best(ask: NodeAsk, candidates: Sequence[DeviceUsage]) -> Sequence[DeviceUsage]:
    """Choose the best cards if more fit than are requested."""
    pod_class, count = ask.selection.traits.get(CLASS, ""), ask.request.count
    if pod_class == ONLINE:
        return _fewest_tasks(candidates, count)
    if not pod_class and ask.request.core_percent >= WHOLE:
        return _one_zone(candidates, count)
    return candidates[:count]


def _fewest_tasks(candidates: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """Choose cards with few online, then few offline slices.

    Cards with offline ones only come last.
    """

    def key(usage: DeviceUsage) -> tuple[bool, int, int]:
        online, offline = _tasks(usage)
        return (offline > 0 and online == 0, online, offline)

    return sorted(candidates, key=key)[:count]


def _one_zone(candidates: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """Choose the smallest link zone with enough cards, then small zones, then cards without one."""
    zones: dict[int, list[DeviceUsage]] = {}
    for usage in candidates:
        zones.setdefault(_zone(usage.device), []).append(usage)
    zoneless = [usage for zone, cards in zones.items() if zone <= 0 for usage in cards]
    groups = sorted((cards for zone, cards in zones.items() if zone > 0), key=len)
    for cards in groups:
        if len(cards) >= count:
            return cards[:count]
    return [*(usage for cards in groups for usage in cards), *zoneless][:count]


def _zone(card: GpuDevice) -> int:
    return int(card.info.get("LinkZone", 0))


def node_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Return the node's score: higher is better; under spread the sign is reversed."""
    chosen = {share.uuid: share for shares in containers for share in shares}
    score = 0
    if selection.traits.get(CLASS) == ONLINE:
        score = sum(_task_score(usage) for usage in before if usage.device.uuid in chosen)
    elif selection.traits.get(TOPOLOGY) == "true" and any(
        share.core_percent == WHOLE for share in chosen.values()
    ):
        idle = [usage.device for usage in before if usage.used_slots == 0]
        available = _zone_score(idle)
        rest = _zone_score(card for card in idle if card.uuid not in chosen)
        allocated = _zone_score(usage.device for usage in before if usage.device.uuid in chosen)
        score = 10 * allocated - (available - allocated - rest)
    return float(score * WEIGHT if node_policy != "spread" else -score * WEIGHT)


def _task_score(usage: DeviceUsage) -> int:
    online, offline = _tasks(usage)
    return -20 * online - 2 * offline if online else -100 * offline


def _zone_score(cards: Iterable[GpuDevice]) -> int:
    zones = [_zone(card) for card in cards if _zone(card) > 0]
    return ZONE_PAIR * sum(a == b for a, b in combinations(zones, 2))


DEVICES = "metax-tech.com/gpu-devices-allocated"
TIME = "metax-tech.com/predicate-time"

REGISTER = "metax-tech.com/node-gpu-devices"

CLASSES = (ONLINE, OFFLINE)
POLICIES = ("best-effort", "fixed-share", "burst-share")
DEFAULT_POLICY = "best-effort"

APP_CLASS = UserAnnotation(
    name="metax-tech.com/sgpu-app-class",
    parse=choice(*CLASSES),
    wanted=one_of(CLASSES),
    refusal=f"must be set one of [{', '.join(CLASSES)}]",
    holds="class of the pod: cards are shared within a class",
)
QOS_POLICY = UserAnnotation(
    name="metax-tech.com/sgpu-qos-policy",
    parse=choice(*POLICIES),
    wanted=one_of(POLICIES),
    refusal=f"must be set one of [{', '.join(POLICIES)}]",
    holds="cards are shared under one policy; without it best-effort; online pods have none",
)
TOPOLOGY_AWARE = UserAnnotation(
    name="metax-tech.com/sgpu-topology-aware",
    parse=flag,
    wanted="true or false",
    refusal="must be true or false",
    holds="whether cards of one link zone are preferred; the installation's setting without it",
)


@dataclass(frozen=True, slots=True)
class MetaxSgpu(Vendor):
    """Vendor `Metax-SGPU`, whose cards are granted in slices."""

    config: MetaxConfig

    name = NAME
    keys = AnnotationKeys(
        register=REGISTER,
        to_allocate="hami.io/metax-sgpu-devices-to-allocate",
        allocated="hami.io/metax-sgpu-devices-allocated",
        use_uuids="metax-tech.com/use-gpuuuid",
        avoid_uuids="metax-tech.com/nouse-gpuuuid",
        extra=(DEVICES, TIME),
        choices=(APP_CLASS, QOS_POLICY, TOPOLOGY_AWARE),
        lock=NODE_LOCK,
    )
    rules = VendorRules(
        order=(Rule.CORDONED, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.MEMORY),
        need=need,
        chooser=choose_cards,
        # Health, class and policy come before those of `order`, cores after them.
        chooser_rules=(
            Rule.NOT_HEALTHY,
            Rule.POD_CLASS,
            Rule.QOS,
            Rule.CORES,
            Rule.EXCLUSIVE,
            Rule.CORES_EXHAUSTED,
        ),
        chooser_decides=True,
        scorer=node_score,
        exact=True,
    )
    limits_only = True

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.config.resource_v_count_name,
            memory=self.config.resource_v_memory_name,
            core=self.config.resource_v_core_name,
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return the standard request, after checking the pod's class, policy and flag.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        if amounts.count(container, self.resources.count, limits_only=True):
            if APP_CLASS.read(annotations) != ONLINE:
                QOS_POLICY.read(annotations)
            TOPOLOGY_AWARE.read(annotations)
        return Vendor.parse_request(self, container, annotations)

    def _memory_mib(self, container: Json, names: ResourceNames) -> int:
        """Return the MiB: a plain number is GiB, one with a unit is bytes, as in HAMi.

        0 if not given.

        Kubernetes stores a bare 1000 as `1k`, which then counts as bytes: such an amount is
        refused, because it is less than a MiB.
        """
        amount = amounts.find(container, names.memory, limits_only=True)
        if amount is None:
            return 0
        where = f"container {container.get('name', '')!r}: {names.memory} is {amount}"
        try:
            text = canonical(str(amount))
            value = parse_int(text)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{where}, which is not a quantity: write 4 or 4Gi") from exc
        if value == 0:
            return 0
        mib = None
        if value is not None:
            has_unit = any(character.isalpha() for character in text)
            mib = value // 2**20 if has_unit else value * 1024
        if mib is None or not 0 < mib <= INT32_MAX:
            raise InvalidRequest(
                f"{where}: expected a whole number of GiB, such as 4, or an amount with a unit of "
                "at least a MiB, such as 2048Mi"
            )
        return mib

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Return the selection by uuid, with class, policy and use of link zones as traits."""
        pod_class = annotations.get(APP_CLASS.name, "")
        by_default = str(self.config.sgpu_topology_aware).lower()
        aware = is_true(annotations.get(TOPOLOGY_AWARE.name, by_default))
        policy = annotations.get(QOS_POLICY.name, "")
        traits = {
            CLASS: pod_class,
            QOS: "" if pod_class == ONLINE else policy,
            TOPOLOGY: str(aware).lower(),
        }
        return replace(Vendor.select(self, annotations), traits=traits)

    def detail_of(self, share: DeviceShare, annotations: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the pod's class and policy as detail."""
        return detail_of(self.select(annotations), share.core_percent)

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the cards in the node's annotation; empty if it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        text = annotations_of(node).get(REGISTER, "")
        return _cards(text) if text else ()

    def plugin_alive(self, node: Json) -> bool:
        """Return whether the node reports at least one card."""
        try:
            return bool(self.node_devices(node))
        except InvalidRequest:
            return False

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the slices as JSON, without zeros, and the time."""
        slices = [
            [
                {name: value for name, value in _plugin_fields(share).items() if value}
                for share in container.shares
                if share.vendor == NAME
            ]
            for container in placed.containers
        ]
        return {DEVICES: json.dumps(slices, separators=(",", ":")), TIME: unix_ns(placed.now)}

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Write the default QoS policy on pods that are not online.

        Raises: InvalidRequest when the container or the pod's annotations ask for what cannot be.
        """
        if not amounts.asks(container, self.resources.count, limits_only=True):
            return MutateResult(wants=False)
        written = annotations_of(pod)
        request = self.parse_request(container, written)
        pod_class = written.get(APP_CLASS.name)
        if pod_class is not None and (request is None or request.count != 1):
            raise InvalidRequest(
                f"app-class pod must request single device: {self.resources.count} is "
                f"{request.count if request else 0} with {APP_CLASS.name} {clip(pod_class)}"
            )
        if written.get(APP_CLASS.name) != ONLINE and QOS_POLICY.name not in written:
            pod.setdefault("metadata", {})["annotations"] = {
                **written,
                QOS_POLICY.name: DEFAULT_POLICY,
            }
        return MutateResult(wants=True)


def _plugin_fields(share: DeviceShare) -> dict[str, str | int]:
    return {"uuid": share.uuid, "compute": share.core_percent, "vRam": share.memory_mib}


def _cards(text: str) -> tuple[GpuDevice, ...]:
    try:
        entries: Any = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{REGISTER} is not JSON: {exc}") from exc
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"{REGISTER} is not a JSON list of objects")
    return tuple(_card(entry, index) for index, entry in enumerate(entries))


def _card(entry: Mapping[str, Any], index: int) -> GpuDevice:
    uuid = _field(entry, "uuid", "", index)
    if not uuid:
        raise InvalidRequest(f"{REGISTER}[{index}] has no uuid")
    return GpuDevice(
        uuid=GpuUuid(uuid),
        index=index,
        vendor=NAME,
        type=NAME,
        slots=_field(entry, "totalDevCount", 0, index),
        memory_mib=_field(entry, "totalVRam", 0, index),
        core_percent=_field(entry, "totalCompute", 0, index),
        numa=_field(entry, "numa", 0, index),
        mode="",
        healthy=_field(entry, "healthy", False, index),
        info={
            "QosPolicy": _field(entry, "qosPolicy", "", index),
            "Model": _field(entry, "model", "", index),
            "LinkZone": _field(entry, "linkZone", 0, index),
        },
    )


def _field(entry: Mapping[str, Any], name: str, absent: Any, index: int) -> Any:
    """Return the field, which must have the type of `absent`, the value for a missing one."""
    value = entry.get(name)
    value = absent if value is None else value
    if type(value) is not type(absent) or (type(value) is int and not -1 <= value <= INT32_MAX):
        raise InvalidRequest(
            f"{name} of {REGISTER}[{index}] is {value!r}: expected a value such as {absent!r}"
        )
    return value
