"""Vendors whose cards are handed out in slots, without amounts of memory or cores (Biren, Vastai).

Facts: protocol 1.14 and 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, Admitted, ResourceNames

SLOT_ORDER = (Rule.NOT_HEALTHY, Rule.CORDONED, Rule.UUID, Rule.SLOTS, Rule.MUTEX)
"""Rules for a card: there is nothing else to run out of, and no annotation of types."""

_NOTHING = Need(0, 0)


def no_amounts(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """A slot takes neither memory nor cores; annotations have 0 of both."""
    return _NOTHING


class SlotVendor(RegisteredVendor, Protocol):
    """A vendor of slots; its module has its names, and how cards are chosen together."""

    config: Any
    """The vendor's block of the device configuration; names the count resource."""

    @property
    def resources(self) -> ResourceNames:
        """The count is all that can be asked for."""
        return ResourceNames(count=self.config.resource_count_name)

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """The count alone; the percentage is what HAMi's card scores count with.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        return DeviceRequest(vendor=self.name, count=count, memory_percent=100) if count else None

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The registered cards; 100 cores each, whatever is registered, as HAMi's scores count.

        Raises: InvalidRequest when the annotation is malformed.
        """
        return tuple(replace(card, core_percent=100) for card in super().node_devices(node))

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Changes nothing; requests are looked at even where limits name nothing.

        Raises: InvalidRequest when the amount is malformed.
        """
        self.parse_request(container)
        wants = amounts.asks(container, self.resources.count, limits_only=True)
        return Admitted(wants=wants)
