"""Vendors that give only whole cards, of which the kubelet lists the number alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import (
    StandardVendor,
    cards_by_capacity,
    listed,
    lists_some,
)
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, ResourceNames


class WholeCardVendor(StandardVendor, Protocol):
    """A vendor of whole cards; its module has the facts that no Node reports."""

    config: Any
    """Block of the device configuration; has `resource_count_name` unless `resources` differs."""
    card_name: ClassVar[str]
    """Part of a card's uuid, `<node>-<card_name>-<index>`."""
    card_memory_mib: ClassVar[int]
    """Memory of every card, in MiB."""
    card_slots: ClassVar[int] = 1
    """Grants that HAMi counts room for on a card; one takes all of it."""
    request_memory_mib: ClassVar[int] = 0
    """Memory that a request names besides 100 %, in MiB."""
    request_core_percent: ClassVar[int] = 100

    @property
    def resources(self) -> ResourceNames:
        """The count is all that can be asked for."""
        return ResourceNames(count=self.config.resource_count_name)

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Whole cards.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        return DeviceRequest(
            vendor=self.name,
            count=count,
            memory_mib=self.request_memory_mib,
            memory_percent=100,
            core_percent=self.request_core_percent,
        )

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return as many equal cards of 100 cores as the kubelet lists.

        Raises: InvalidRequest when the capacity is no whole number, or absurdly large.
        """
        return cards_by_capacity(
            node,
            vendor=self.name,
            name=self.card_name,
            count=listed(node, "capacity", self.resources.count),
            memory_mib=self.card_memory_mib,
            core=100,
            slots=self.card_slots,
        )

    def plugin_alive(self, node: Json) -> bool:
        """While the kubelet lists cards."""
        return lists_some(node, "capacity", self.resources.count)
