"""MetaX cards given whole, the vendor `Metax-GPU`. Facts: protocol 1.7.

The node's plugin may tell what a choice of n cards costs or yields in topology; that goes into
`GpuDevice.info` of every card and from there into the node's score. Slices of MetaX cards are a
vendor of their own, `metax_sgpu.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.device_config import MetaxConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonObject
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import StandardVendor, cards_by_capacity, listed
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, AnnotationKeys, ResourceNames

WORD = "Metax-GPU"
MEMORY_MIB = 65536
"""Of every card: the node does not tell."""
TOPOLOGY = {
    "binpack": "metax-tech.com/gpu.topology.losses",
    "spread": "metax-tech.com/gpu.topology.scores",
}
"""The node's annotation that each node policy looks at: JSON, number of cards -> value."""
BEST_SCORE = 2000

KEYS = AnnotationKeys(
    to_allocate="hami.io/metax-gpu-devices-to-allocate",
    allocated="hami.io/metax-gpu-devices-allocated",
)


def topology_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """2000 less what the node tells for as many cards; 0 when it tells nothing for the policy."""
    told = before[0].device.info.get(TOPOLOGY.get(node_policy, "")) if before else None
    if told is None:
        return 0.0
    cards = sum(len(shares) for shares in containers)
    return float(BEST_SCORE - told.get(str(cards), 0))


RULES = VendorRules(same_card=True, scorer=topology_score)


@dataclass(frozen=True, slots=True)
class MetaxGpu(StandardVendor):
    """The vendor `Metax-GPU` (see vendors.base.Vendor)."""

    config: MetaxConfig

    word = WORD
    keys = KEYS
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """The count is all that can be asked for."""
        return ResourceNames(count=self.config.resource_count_name)

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Whole cards.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        return DeviceRequest(vendor=WORD, count=count, memory_percent=100, core_percent=100)

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """As many cards as the kubelet lists, with the node's topology if it is told.

        Raises: InvalidRequest when the capacity is no whole number.
        """
        cards = cards_by_capacity(
            node,
            word=WORD,
            name="metax",
            count=listed(node, "capacity", self.resources.count),
            memory_mib=MEMORY_MIB,
            core=100,
            slots=1,
        )
        written = annotations_of(node)
        info = {key: _values(written[key]) for key in TOPOLOGY.values() if key in written}
        return tuple(replace(card, info=info) for card in cards) if info else cards

    def plugin_alive(self, node: JsonObject) -> bool:
        """While the kubelet lists cards."""
        try:
            return listed(node, "capacity", self.resources.count) > 0
        except InvalidRequest:
            return False


def _values(text: str) -> dict[str, int]:
    """What the annotation tells per number of cards; nothing when it is malformed, as in HAMi."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    if not all(isinstance(value, int) for value in found.values()):
        return {}
    return found
