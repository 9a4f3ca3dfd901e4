"""Hygon DCU cards, the vendor `DCU`. Facts: protocol 1.4."""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.device_config import HygonConfig
from hamicommon.k8s.annotations import NODE_LOCK
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.shares import ShareVendor
from hamicommon.vendors.interface.vendor import AnnotationKeys

NAME = "DCU"

KEYS = AnnotationKeys(
    register="hami.io/node-dcu-register",
    handshake="hami.io/node-handshake-dcu",
    to_allocate="hami.io/dcu-devices-to-allocate",
    allocated="hami.io/dcu-devices-allocated",
    use_types="hygon.com/use-dcutype",
    avoid_types="hygon.com/nouse-dcutype",
    use_uuids="hygon.com/use-gpuuuid",
    avoid_uuids="hygon.com/nouse-gpuuuid",
    lock=NODE_LOCK,
)


@dataclass(frozen=True, slots=True)
class Hygon(RegisteredVendor, ShareVendor):
    """The vendor `DCU` (see `interface.vendor.Vendor`)."""

    config: HygonConfig

    name = NAME
    keys = KEYS

    @property
    def memory_factor(self) -> int:
        """Return the factor as configured, at least 1."""
        return max(self.config.memory_factor, 1)
