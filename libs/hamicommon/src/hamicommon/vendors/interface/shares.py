"""Vendors whose containers ask for a number of cards, and for memory and cores of each card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import StandardVendor, cards_by_capacity, listed
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, ResourceNames


class ShareVendor(StandardVendor, Protocol):
    """A vendor with a resource for the count, one for memory and one for cores."""

    config: Any
    """The vendor's block of the device configuration; names the three resources."""
    default_core_percent: ClassVar[int] = 100
    """Cores of every card, in percent, that a request without cores is given."""

    @property
    def memory_factor(self) -> int:
        """MiB per unit of the memory resource."""
        return 1

    @property
    def resources(self) -> ResourceNames:
        """The three names of the configuration."""
        return ResourceNames(
            count=self.config.resource_count_name,
            memory=self.config.resource_memory_name,
            core=self.config.resource_core_name,
            memory_factor=self.memory_factor,
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Without memory the whole card's, without cores `default_core_percent`.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        names = self.resources
        count = amounts.count(container, names.count)
        if not count:
            return None
        memory = amounts.memory(container, names.memory, factor=names.memory_factor)
        default = self.default_core_percent
        return DeviceRequest(
            vendor=self.name,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=amounts.cores(container, names.core, default=default),
        )


def cards_by_cores(
    vendor: ShareVendor, node: Json, *, name: str, cores_per_card: int
) -> tuple[GpuDevice, ...]:
    """The cards of a node that lists only its sums: each has its part of the listed memory.

    Raises: InvalidRequest when a capacity is no whole number, or there are absurdly many cards.
    """
    names = vendor.resources
    cores = listed(node, "capacity", names.core)
    if not cores:
        return ()
    units = listed(node, "capacity", names.memory)
    return cards_by_capacity(
        node,
        vendor=vendor.name,
        name=name,
        count=-(-cores // cores_per_card),
        memory_mib=units * names.memory_factor * cores_per_card // cores,
        core=cores_per_card,
        slots=100,
    )
