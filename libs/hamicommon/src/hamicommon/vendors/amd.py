"""AMD cards: a share of a card is memory in MiB and compute units, asked for in percent.

Facts: protocol 1.2. `GpuDevice.core_percent` and `DeviceShare.core_percent` are compute units
here, `DeviceRequest.core_percent` is percent of a card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import AmdConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need, VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.shares import ShareVendor
from hamicommon.vendors.interface.standard import lists_some
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, Admitted, AnnotationKeys

NAME = "AMD"

_KEYS = AnnotationKeys(
    register="hami.io/node-amd-register",
    to_allocate="hami.io/amd-devices-to-allocate",
    allocated="hami.io/amd-devices-allocated",
    use_types="amd.com/use-gputype",
    avoid_types="amd.com/nouse-gputype",
    use_uuids="amd.com/use-gpu-uuid",
    avoid_uuids="amd.com/nouse-gpu-uuid",
    lock=keys.NODE_LOCK,
)
_ORDER = (
    Rule.NOT_HEALTHY,
    Rule.CORDONED,
    Rule.TYPE,
    Rule.UUID,
    Rule.SLOTS,
    Rule.MUTEX,
    Rule.MEMORY,
    Rule.CORES,
)
"""No rule for exclusive or exhausted cards: a whole card is all of its compute units."""


def compute_units(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Percent of the card as compute units, rounded down but at least one.

    A card that reports no units cannot give one, so the need of one refuses it.
    """
    units = max(min(card.core_percent * request.core_percent // 100, card.core_percent), 1)
    return Need(request.memory_mib_on(card.memory_mib), units)


_RULES = VendorRules(order=_ORDER, need=compute_units, share_type=lambda card: card.type)


@dataclass(frozen=True, slots=True)
class Amd(RegisteredVendor, ShareVendor):
    """The vendor `AMD` (see `interface.vendor.Vendor`)."""

    config: AmdConfig

    name = NAME
    keys = _KEYS
    rules = _RULES

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return what the container's limits ask for; None when they ask for no card.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        config = self.config
        count = amounts.count(container, config.resource_count_name, limits_only=True)
        if not count:
            return None
        memory = amounts.memory(container, config.resource_memory_name, limits_only=True)
        percent = amounts.whole(
            container,
            config.resource_core_name,
            low=1,
            top=100,
            wanted="a whole number from 1 to 100, the share of a card's compute units,",
            limits_only=True,
        )
        return DeviceRequest(
            vendor=NAME,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=100 if percent is None else percent,
        )

    def plugin_alive(self, node: Json) -> bool:
        """While the kubelet lists cards."""
        return lists_some(node, "capacity", self.resources.count)

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Changes nothing; a pod that names any of the resources, and not with 0, is ours.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        self.parse_request(container)
        names = self.resources.all()
        wants = any(amounts.asks(container, each, limits_only=True) for each in names)
        return Admitted(wants=wants)
