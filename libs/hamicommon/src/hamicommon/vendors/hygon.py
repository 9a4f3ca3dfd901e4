"""Hygon DCU cards, the vendor `DCU`. Facts: protocol 1.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import HygonConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.annotations import NODE_LOCK
from hamicommon.k8s.types import JsonObject
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import (
    StandardVendor,
    answers_handshake,
    registered_cards,
    selection,
)
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, AnnotationKeys, ResourceNames

WORD = "DCU"

KEYS = AnnotationKeys(
    register="hami.io/node-dcu-register",
    handshake="hami.io/node-handshake-dcu",
    to_allocate="hami.io/dcu-devices-to-allocate",
    allocated="hami.io/dcu-devices-allocated",
    lock=NODE_LOCK,
)


@dataclass(frozen=True, slots=True)
class Hygon(StandardVendor):
    """The vendor `DCU` (see vendors.base.Vendor)."""

    config: HygonConfig

    word = WORD
    keys = KEYS

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.config.resource_count_name,
            memory=self.config.resource_memory_name,
            core=self.config.resource_core_name,
            memory_factor=max(self.config.memory_factor, 1),
        )

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Without memory the whole card's, without cores all of them.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        names = self.resources
        count = amounts.count(container, names.count)
        if not count:
            return None
        memory = amounts.memory(container, names.memory, factor=names.memory_factor)
        return DeviceRequest(
            vendor=WORD,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=amounts.cores(container, names.core, default=100),
        )

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By registered type and by uuid."""
        return selection(
            annotations,
            use_types="hygon.com/use-dcutype",
            avoid_types="hygon.com/nouse-dcutype",
            use_uuids="hygon.com/use-gpuuuid",
            avoid_uuids="hygon.com/nouse-gpuuuid",
        )

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """The cards in the node's register annotation; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        return registered_cards(node, KEYS.register, WORD)

    def plugin_alive(self, node: JsonObject) -> bool:
        """By the handshake."""
        return answers_handshake(node, KEYS.handshake, self.resources.count)
