"""Enflame cards given whole, the vendor `GCU`. Facts: protocol 1.11.

Slices of Enflame cards are a vendor of their own, `drs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.device_config import EnflameConfig
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface.vendor import AnnotationKeys, ResourceNames
from hamicommon.vendors.interface.whole_cards import WholeCardVendor

NAME = "GCU"
WHOLE = 100
"""Memory of a card, and of a request for it: the node reports none, so it is counted in percent."""

KEYS = AnnotationKeys(
    to_allocate="hami.io/enflame-gcu-devices-to-allocate",
    allocated="hami.io/enflame-gcu-devices-allocated",
)
RULES = VendorRules(order=(Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE, Rule.IN_USE))


@dataclass(frozen=True, slots=True)
class EnflameGcu(WholeCardVendor):
    """The vendor `GCU` (see `interface.vendor.Vendor`)."""

    config: EnflameConfig

    name = NAME
    keys = KEYS
    rules = RULES
    card_name = "GCU"
    card_memory_mib = WHOLE
    request_memory_mib = WHOLE

    @property
    def resources(self) -> ResourceNames:
        """The count is all that can be asked for."""
        return ResourceNames(count=self.config.resource_name_gcu)
