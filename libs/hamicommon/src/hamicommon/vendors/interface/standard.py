"""The parts that most vendors have alike.

Annotations of a placed pod, selection by annotation keys, what a Node reports, env of a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.quantities import parse_int
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import Admitted, AnnotationKeys, PairScores, Placed, Vendor

STANDARD_RULES = VendorRules()
_EPOCH = datetime.fromtimestamp(0, UTC)
MAX_CARDS = 1024
"""Cards of one vendor on a node that reports only how many; the largest have some dozens."""


class StandardVendor(Vendor, Protocol):
    """Parts that most vendors have alike; a vendor's module has the rest and what differs."""

    @property
    def rules(self) -> VendorRules:
        """The standard loop."""
        return STANDARD_RULES

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By the lists of types and uuids that the vendor has."""
        return selection(annotations, self.keys)

    def node_pair_scores(self, node: Json) -> PairScores:
        """Nothing is known of how the cards are connected."""
        return {}

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, under the keys that the vendor has."""
        return device_annotations(placed, self.name, self.keys)

    def plugin_alive(self, node: Json) -> bool:
        """Always: nothing on the Node shows it (protocol 1, CheckHealth answers true)."""
        return True

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Nothing is filled in; the container asks for a card when its limits name a
        count that is not 0.

        Raises: InvalidRequest when what it asks for can never be given.
        """
        wants = amounts.asks(container, self.resources.count, limits_only=True)
        if wants:
            self.parse_request(container, keys.annotations_of(pod))
        return Admitted(wants=wants)


def device_annotations(placed: Placed, vendor: str, written: AnnotationKeys) -> dict[str, str]:
    """The slices under the vendor's to-allocate and allocated keys, where it has them.

    Empty when no container has a card of the vendor.
    """
    if not any(share.vendor == vendor for c in placed.containers for share in c.shares):
        return {}
    devices = keys.encode_pod_devices(placed.containers, vendor)
    return {key: devices for key in (written.to_allocate, written.allocated) if key}


def selection(annotations: Mapping[str, str], names: AnnotationKeys) -> Selection:
    """Read the comma lists of cards; a list without a name is one that the vendor has not."""

    def entries(key: str) -> tuple[str, ...]:
        return keys.split_list(annotations.get(key, "")) if key else ()

    return Selection(
        use_types=entries(names.use_types),
        avoid_types=entries(names.avoid_types),
        use_uuids=entries(names.use_uuids),
        avoid_uuids=entries(names.avoid_uuids),
    )


def listed(node: Json, part: str, resource: str) -> int:
    """How much of `resource` the Node's status lists under `part`; 0 when it lists none.

    Args: part: `capacity` or `allocatable`.
    Raises: InvalidRequest when what it lists is no whole number.
    """
    amount = ((node.get("status") or {}).get(part) or {}).get(resource, 0)
    value = parse_int(amount)
    if value is None or value < 0:
        name = (node.get("metadata") or {}).get("name", "")
        raise InvalidRequest(
            f"node {name}: {part} of {resource} is {amount}: a whole number is wanted"
        )
    return value


def lists_some(node: Json, part: str, resource: str) -> bool:
    """Whether the Node's status lists any of `resource`; an amount that is no number is none."""
    try:
        return listed(node, part, resource) > 0
    except InvalidRequest:
        return False


def answers_handshake(node: Json, key: str, resource: str) -> bool:
    """Whether a plugin with a handshake lives (protocol 2.4).

    Any text but `Requesting_<time>` is its answer. HAMi gives an unanswered question 60 s, and
    then believes the kubelet; the kubelet alone decides here, because a pod could not start anyway
    where it lists none of the resource.
    """
    if "Requesting" not in keys.annotations_of(node).get(key, ""):
        return True
    return lists_some(node, "allocatable", resource)


def set_env(container: Json, name: str, value: str) -> None:
    """Sets one env entry, in place of the entries of that name: of several the last counts."""
    env = container["env"] = container.get("env") or []
    wanted = {"name": name, "value": value}
    places = [place for place, entry in enumerate(env) if entry.get("name") == name]
    for place in reversed(places[1:]):
        del env[place]
    if places:
        env[places[0]] = wanted
    else:
        env.append(wanted)


def cards_by_capacity(
    node: Json, *, vendor: str, name: str, count: int, memory_mib: int, core: int, slots: int
) -> tuple[GpuDevice, ...]:
    """`count` equal cards `<node>-<name>-<i>`, for vendors whose nodes only list how many.

    Raises: InvalidRequest when there are absurdly many.
    """
    host = str((node.get("metadata") or {}).get("name", ""))
    if count > MAX_CARDS:
        raise InvalidRequest(
            f"node {host}: its capacity comes to {count} {vendor} cards: at most {MAX_CARDS} are "
            "wanted"
        )
    return tuple(
        GpuDevice(
            uuid=GpuUuid(f"{host}-{name}-{index}"),
            index=index,
            vendor=vendor,
            type=vendor,
            slots=slots,
            memory_mib=memory_mib,
            core_percent=core,
            mode="",
        )
        for index in range(count)
    )


def indexes(placed: Placed, vendor: str) -> str:
    """Indexes of the cards of the last container that has some: HAMi overwrites the earlier."""
    last = [c.shares for c in placed.containers if any(s.vendor == vendor for s in c.shares)][-1]
    return ",".join(str(placed.cards[s.uuid].index) for s in last if s.vendor == vendor)


def unix_ns(now: datetime) -> str:
    """Nanoseconds since 1970, exact to the microsecond, as Go writes them."""
    return str((now - _EPOCH) // timedelta(microseconds=1) * 1000)
