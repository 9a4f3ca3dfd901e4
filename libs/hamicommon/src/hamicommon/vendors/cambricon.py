"""Cambricon MLU cards, the vendor `MLU`. Facts: protocol 1.3.

Memory is asked for in units of 256 MiB. Type annotations exist in HAMi as names only and are not
read; the node tells its cards by the capacities that the kubelet lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import CambriconConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.types import JsonObject
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import (
    StandardVendor,
    cards_by_capacity,
    device_annotations,
    listed,
    selection,
)
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    Placed,
    ResourceNames,
)

WORD = "MLU"
FACTOR = 256
"""MiB per unit of the memory resource."""
ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"
PROFILE = "CAMBRICON_DSMLU_PROFILE"

KEYS = AnnotationKeys(
    to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
    allocated="hami.io/cambricon-mlu-devices-allocated",
    extra=(ASSIGNED, PROFILE),
    lock="cambricon.com/dsmlu.lock",
)


@dataclass(frozen=True, slots=True)
class Cambricon(StandardVendor):
    """The vendor `MLU` (see vendors.base.Vendor)."""

    config: CambriconConfig

    word = WORD
    keys = KEYS

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.config.resource_count_name,
            memory=self.config.resource_memory_name,
            core=self.config.resource_core_name,
            memory_factor=FACTOR,
        )

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Without memory the whole card's, without cores all of them.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        memory = amounts.memory(container, self.resources.memory, factor=FACTOR)
        return DeviceRequest(
            vendor=WORD,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=amounts.cores(container, self.resources.core, default=100),
        )

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By uuid only."""
        return selection(
            annotations,
            use_uuids="cambricon.com/use-gpuuuid",
            avoid_uuids="cambricon.com/nouse-gpuuuid",
        )

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """A card per hundred of the listed cores, each with its part of the listed memory.

        Raises: InvalidRequest when a capacity is no whole number.
        """
        cores = listed(node, "capacity", self.resources.core)
        if not cores:
            return ()
        units = listed(node, "capacity", self.resources.memory)
        return cards_by_capacity(
            node,
            word=WORD,
            name="cambricon-mlu",
            count=-(-cores // 100),
            memory_mib=units * FACTOR * 100 // cores,
            core=100,
            slots=100,
        )

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and `<index>_<cores>_<memory units>` of the first of them for the plugin."""
        written = device_annotations(placed, WORD, KEYS)
        if written:
            first = next(s for c in placed.containers for s in c.shares if s.vendor == WORD)
            index = placed.cards[first.uuid].index
            written[ASSIGNED] = "false"
            written[PROFILE] = f"{index}_{first.core_percent}_{first.memory_mib // FACTOR}"
        return written
