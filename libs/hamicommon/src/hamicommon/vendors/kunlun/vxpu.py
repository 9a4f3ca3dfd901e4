"""Slices of Kunlun cards, the vendor `XPU`. Facts: protocol 1.10.

A card is cut into equal parts: what the first slice takes, every later one must take, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import KunlunConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.annotations import NODE_LOCK, annotations_of
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import NUMA_NOT_FIT, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen, VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    ResourceNames,
)
from hamicommon.vendors.kunlun.xpu import (
    CHOICES,
    LINKED,
    choose_by_graph,
    kunlun_selection,
    most_linked,
)

NAME = "XPU"
SIZES = (24576, 49152, 98304)
"""MiB of a slice: a quarter, a half, and all of a card; more is taken as all."""

KEYS = AnnotationKeys(
    register="hami.io/node-register-xpu",
    handshake="hami.io/node-handshake-xpu",
    to_allocate="hami.io/xpu-devices-to-allocate",
    allocated="hami.io/xpu-devices-allocated",
    choices=CHOICES,
    lock=NODE_LOCK,
)


def rounded(memory_mib: int) -> int:
    """The size of slice that holds so much memory."""
    return next((size for size in SIZES if memory_mib <= size), SIZES[-1])


def choose_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Cards with room for one more equal part that go together."""
    part, cores = ask.request.memory_mib, ask.request.core_percent
    fits = [
        rule == Rule.FITS and _in_equal_parts(usage, part)
        for usage, rule in zip(ask.cards, ask.rules, strict=True)
    ]
    picked = choose_by_graph(ask, fits)
    if picked:
        return Chosen(
            shares=tuple(
                DeviceShare(
                    uuid=usage.device.uuid, vendor=NAME, memory_mib=part, core_percent=cores
                )
                for usage in picked
            )
        )
    other_size = {
        usage.device.uuid: Rule.SLICE_SIZE
        for usage, rule in zip(ask.cards, ask.rules, strict=True)
        if rule == Rule.FITS and not _in_equal_parts(usage, part)
    }
    return NotChosen(
        reasons=_reasons(ask), refused=other_size, limit=LINKED, fitting=most_linked(ask, fits)
    )


def _reasons(ask: NodeAsk) -> dict[str, int]:
    """Reasons as HAMi gives them, which names one rule."""
    for rule in (Rule.MUTEX, Rule.UUID):
        refused = sum(rule == each for each in ask.rules)
        if refused:
            return {REASONS[rule]: refused}
    return {NUMA_NOT_FIT: 1}


def _in_equal_parts(usage: DeviceUsage, part: int) -> bool:
    return usage.used_slots == 0 or usage.used_memory_mib // usage.used_slots == part


RULES = VendorRules(
    order=(
        Rule.MUTEX,
        Rule.UUID,
        Rule.NOT_HEALTHY,
        Rule.CORDONED,
        Rule.SLOTS,
        Rule.MEMORY,
    ),
    chooser=choose_cards,
    chooser_rules=(Rule.SLICE_SIZE,),
    chooser_decides=True,
    exact=True,
)


@dataclass(frozen=True, slots=True)
class KunlunVxpu(RegisteredVendor):
    """The vendor `XPU` (see `interface.vendor.Vendor`)."""

    config: KunlunConfig

    name = NAME
    keys = KEYS
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """Count and memory; cores follow from the memory."""
        return ResourceNames(
            count=self.config.resource_v_count_name, memory=self.config.resource_v_memory_name
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Slices of a quarter, a half or all of a card; all of it when no memory is asked for.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        sized = amounts.find(container, self.resources.memory) is not None
        asked = amounts.memory(container, self.resources.memory)
        part = rounded(asked) if sized else SIZES[-1]
        return DeviceRequest(
            vendor=NAME,
            count=count,
            memory_mib=part,
            memory_percent=None if sized else 100,
            core_percent=part * 100 // SIZES[-1],
        )

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By uuid, see `kunlun_selection`."""
        return kunlun_selection(annotations)

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Writes the size of slice that will be given, in limits and requests.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        names = self.resources
        if not amounts.asks(container, names.count, limits_only=True):
            return Admitted(wants=False)
        self.parse_request(container, annotations_of(pod))
        if amounts.find(container, names.memory, limits_only=True) is None:
            return Admitted(wants=True)
        asked = amounts.memory(container, names.memory, limits_only=True)
        size = {names.memory: str(rounded(asked))}
        resources = container["resources"]
        for part in ("limits", "requests"):
            resources[part] = (resources.get(part) or {}) | size
        if asked <= SIZES[-1]:
            return Admitted(wants=True)
        return Admitted(
            wants=True,
            warnings=(
                f"container {container.get('name', '')!r}: {names.memory} {asked} is more than "
                f"one card has and is taken as {SIZES[-1]}",
            ),
        )
