"""Vendors whose cards are handed out in slots, without amounts of memory or cores (Biren, Vastai).

Facts: protocol sheet 1.14 and 1.15.
"""

from __future__ import annotations

from dataclasses import replace

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_rules import Need
from hamicommon.vendors import amounts
from hamicommon.vendors.base import Admitted, JsonObject
from hamicommon.vendors.standard import registered_cards

SLOT_ORDER = (Rule.NOT_HEALTHY, Rule.CORDONED, Rule.UUID, Rule.SLOTS, Rule.MUTEX)
"""What is asked of a card: there is nothing else to run out of, and no annotation of types."""

_NOTHING = Need(0, 0)


def no_amounts(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """A slot takes neither memory nor cores; annotations say 0 of both."""
    return _NOTHING


def slot_request(container: JsonObject, resource: str, word: str) -> DeviceRequest | None:
    """The count alone; the percentage is what HAMi's card scores count with.

    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    count = amounts.count(container, resource)
    return DeviceRequest(vendor=word, count=count, memory_percent=100) if count else None


def slot_cards(node: JsonObject, key: str, word: str) -> tuple[GpuDevice, ...]:
    """The registered cards; 100 cores each, whatever is registered, as HAMi's scores count.

    Raises: InvalidRequest when the annotation is malformed.
    """
    return tuple(replace(card, core_percent=100) for card in registered_cards(node, key, word))


def admit_slots(container: JsonObject, resource: str, word: str) -> Admitted:
    """A container is ours when its limits name the resource.

    Raises: InvalidRequest when the amount is malformed.
    """
    slot_request(container, resource, word)
    return Admitted(wants=amounts.find(container, resource, limits_only=True) is not None)
