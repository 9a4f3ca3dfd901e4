"""MetaX cards given whole, the vendor `Metax-GPU`. Facts: protocol 1.7.

The node's plugin may register what a choice of n cards costs or yields in topology; that goes into
`GpuDevice.info` of every card and from there into the node's score. Slices of MetaX cards are a
vendor of their own, `sgpu.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.device_config import MetaxConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import Selection
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface.vendor import AnnotationKeys
from hamicommon.vendors.interface.whole_cards import WholeCardVendor

NAME = "Metax-GPU"
MEMORY_MIB = 65536
"""Memory of every card: the node reports none."""
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
    """2000 less the node's value for as many cards; 0 when it has none for the policy."""
    values = before[0].device.info.get(TOPOLOGY.get(node_policy, "")) if before else None
    if values is None:
        return 0.0
    cards = sum(len(shares) for shares in containers)
    return float(BEST_SCORE - values.get(str(cards), 0))


RULES = VendorRules(same_card=True, scorer=topology_score)


@dataclass(frozen=True, slots=True)
class MetaxGpu(WholeCardVendor):
    """The vendor `Metax-GPU` (see `interface.vendor.Vendor`)."""

    config: MetaxConfig

    name = NAME
    keys = KEYS
    rules = RULES
    card_name = "metax"
    card_memory_mib = MEMORY_MIB

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return as many cards as the kubelet lists, with the node's topology if it is registered.

        Raises: InvalidRequest when the capacity is no whole number.
        """
        cards = WholeCardVendor.node_devices(self, node)
        written = annotations_of(node)
        info = {key: _values(written[key]) for key in TOPOLOGY.values() if key in written}
        return tuple(replace(card, info=info) for card in cards) if info else cards


def _values(text: str) -> dict[str, int]:
    """The annotation's value per number of cards; nothing when it is malformed, as in HAMi."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    if not all(isinstance(value, int) for value in found.values()):
        return {}
    return found
