"""Cambricon MLU cards, the vendor `MLU`. Facts: protocol 1.3.

Memory is asked for in units of 256 MiB. Type annotations exist in HAMi as names only and are not
read; the node's cards follow from the capacities that the kubelet lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.device_config import CambriconConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface.shares import ShareVendor, cards_by_cores
from hamicommon.vendors.interface.standard import device_annotations
from hamicommon.vendors.interface.vendor import AnnotationKeys, Placed

NAME = "MLU"
FACTOR = 256
"""MiB per unit of the memory resource."""
ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"
PROFILE = "CAMBRICON_DSMLU_PROFILE"

KEYS = AnnotationKeys(
    to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
    allocated="hami.io/cambricon-mlu-devices-allocated",
    use_uuids="cambricon.com/use-gpuuuid",
    avoid_uuids="cambricon.com/nouse-gpuuuid",
    extra=(ASSIGNED, PROFILE),
    lock="cambricon.com/dsmlu.lock",
)


@dataclass(frozen=True, slots=True)
class Cambricon(ShareVendor):
    """The vendor `MLU` (see `interface.vendor.Vendor`)."""

    config: CambriconConfig

    name = NAME
    keys = KEYS
    memory_factor = FACTOR

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """A card per hundred of the listed cores, each with its part of the listed memory.

        Raises: InvalidRequest when a capacity is no whole number.
        """
        return cards_by_cores(self, node, name="cambricon-mlu", cores_per_card=100)

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and `<index>_<cores>_<memory units>` of the first of them for the plugin."""
        written = device_annotations(placed, NAME, KEYS)
        if written:
            first = next(s for c in placed.containers for s in c.shares if s.vendor == NAME)
            index = placed.cards[first.uuid].index
            written[ASSIGNED] = "false"
            written[PROFILE] = f"{index}_{first.core_percent}_{first.memory_mib // FACTOR}"
        return written
