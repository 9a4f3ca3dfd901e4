"""Enflame cards given whole, the vendor `GCU`. Facts: protocol 1.11.

Slices of Enflame cards are a vendor of their own, `enflame_drs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import EnflameConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import JsonObject
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import StandardVendor, cards_by_capacity, listed
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, AnnotationKeys, ResourceNames

WORD = "GCU"
WHOLE = 100
"""Memory and cores of a card, and of a request for it: the node tells neither."""

KEYS = AnnotationKeys(
    to_allocate="hami.io/enflame-gcu-devices-to-allocate",
    allocated="hami.io/enflame-gcu-devices-allocated",
)
RULES = VendorRules(order=(Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE, Rule.IN_USE))


@dataclass(frozen=True, slots=True)
class EnflameGcu(StandardVendor):
    """The vendor `GCU` (see vendors.base.Vendor)."""

    config: EnflameConfig

    word = WORD
    keys = KEYS
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """The count is all that can be asked for."""
        return ResourceNames(count=self.config.resource_name_gcu)

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Whole cards.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        return DeviceRequest(
            vendor=WORD, count=count, memory_mib=WHOLE, memory_percent=100, core_percent=WHOLE
        )

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """As many cards as the kubelet lists.

        Raises: InvalidRequest when the capacity is no whole number.
        """
        count = listed(node, "capacity", self.resources.count)
        return cards_by_capacity(
            node, word=WORD, name="GCU", count=count, memory_mib=WHOLE, core=WHOLE, slots=1
        )

    def plugin_alive(self, node: JsonObject) -> bool:
        """While the kubelet lists cards."""
        try:
            return listed(node, "capacity", self.resources.count) > 0
        except InvalidRequest:
            return False
