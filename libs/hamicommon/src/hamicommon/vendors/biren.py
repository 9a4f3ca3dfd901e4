"""Biren cards: a container gets slots of cards; memory and cores are not divided.

Facts: protocol 1.15.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.device_config import BirenConfig
from hamicommon.k8s import annotations as keys
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface.slots import SLOT_ORDER, SlotVendor, no_amounts
from hamicommon.vendors.interface.vendor import AnnotationKeys

NAME = "Biren"

_KEYS = AnnotationKeys(
    register="hami.io/node-biren-register",
    handshake="hami.io/node-handshake-biren",
    to_allocate="hami.io/Biren-devices-to-allocate",
    allocated="hami.io/Biren-devices-allocated",
    use_uuids="birentech.com/use-gpuuuid",
    avoid_uuids="birentech.com/nouse-gpuuuid",
    lock=keys.NODE_LOCK,
)
_RULES = VendorRules(order=SLOT_ORDER, need=no_amounts)


@dataclass(frozen=True, slots=True)
class Biren(SlotVendor):
    """The vendor `Biren` (see `interface.vendor.Vendor`)."""

    config: BirenConfig

    name = NAME
    keys = _KEYS
    rules = _RULES
