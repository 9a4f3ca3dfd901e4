"""Slices of Enflame cards, the vendor `Enflame`. Facts: protocol 1.12.

A card is cut into slices of the sizes that its profiles have. The value of the count resource is
the size of one slice, not a number of cards; memory and cores may be asked for instead, and then
the smallest profile with enough of both is taken. A slice takes as many slots as its size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hamicommon.device_config import INT32_MAX, EnflameConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules, tally
from hamicommon.vendors.enflame.drs_cards import CAPACITY, NAME, Profile, cards_of, profiles_of
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import StandardVendor, device_annotations, unix_ns
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    Placed,
    ResourceNames,
)

SLICE = "slice"
"""Trait of a request: the size asked for."""
MEMORY = "memory"
"""Trait of a request: the memory asked for, see `_gib`."""

ASSIGNED = "enflame.com/gcu-assigned"
TIME = "enflame.com/gcu-assigned-time"
INDEX = "enflame.com/gcu-assigned-index"
ID = "enflame.com/gcu-assigned-id"
MINOR = "enflame.com/gcu-assigned-minor"
SIZE = "enflame.com/gcu-request-size"
CONTAINERS = "assigned-containers"

KEYS = AnnotationKeys(
    register=CAPACITY,
    allocated="hami.io/enflame-vgpu-devices-allocated",
    use_uuids="enflame.com/use-gpuuuid",
    avoid_uuids="enflame.com/nouse-gpuuuid",
    extra=(ASSIGNED, TIME, INDEX, ID, MINOR, SIZE, CONTAINERS),
)


def profile_for(request: DeviceRequest, card: GpuDevice) -> Profile | None:
    """The profile that the request gets on the card; None when it has none for it."""
    profiles = profiles_of(card)
    if SLICE in request.traits:
        wanted = int(request.traits[SLICE])
        return next((profile for profile in profiles if profile.size == wanted), None)
    memory = _gib(int(request.traits[MEMORY]), max(profile.memory_gib for profile in profiles))
    for profile in profiles:
        if profile.memory_gib >= memory and _core(profile, card) >= request.core_percent:
            return profile
    return None


def _gib(memory: int, largest: int) -> int:
    """The memory asked for in GiB: what exceeds twice the largest profile was meant in MiB."""
    return -(-memory // 1024) if memory > 2 * largest else memory


def _core(profile: Profile, card: GpuDevice) -> int:
    """Percent of the card's cores that come with the profile."""
    return -(-profile.size * 100 // int(card.info["maxSlice"]))


def need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return what the profile takes; one slot, because HAMi only asks whether one is free."""
    profile = profile_for(request, card)
    if profile is None:
        return Need(0, 0)
    return Need(profile.memory_gib * 1024, _core(profile, card))


def choose_card(ask: NodeAsk) -> Chosen | NotChosen:
    """The first card that fits, with the slots of the slice's size and the profile's id."""
    without = {
        usage.device.uuid: Rule.MODE
        for usage, rule in zip(ask.cards, ask.rules, strict=True)
        if rule == Rule.FITS and profile_for(ask.request, usage.device) is None
    }
    if not any(profile_for(ask.request, usage.device) for usage in ask.cards):
        return NotChosen(reasons={REASONS[Rule.MODE]: 1}, refused=without)
    for usage, rule in zip(ask.cards, ask.rules, strict=True):
        profile = profile_for(ask.request, usage.device)
        if rule != Rule.FITS or profile is None:
            continue
        share = DeviceShare(
            uuid=usage.device.uuid,
            vendor=NAME,
            memory_mib=profile.memory_gib * 1024,
            core_percent=_core(profile, usage.device),
            slots=profile.size,
            detail={"profile": profile.name, "profileID": profile.id},
        )
        return Chosen(shares=(share,))
    return NotChosen(reasons=tally(ask.rules), refused=without)


RULES = VendorRules(
    order=(
        Rule.NOT_HEALTHY,
        Rule.CORDONED,
        Rule.TYPE,
        Rule.UUID,
        Rule.SLOTS,
        Rule.MUTEX,
        Rule.MEMORY,
        Rule.CORES,
    ),
    need=need,
    chooser=choose_card,
    chooser_rules=(Rule.MODE,),
    chooser_decides=True,
)


@dataclass(frozen=True, slots=True)
class EnflameDrs(StandardVendor):
    """The vendor `Enflame` (see `interface.vendor.Vendor`)."""

    config: EnflameConfig

    name = NAME
    keys = KEYS
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """Size, or memory and cores without it."""
        memory, core = self.config.resource_name_gcu_memory, self.config.resource_name_gcu_core
        return ResourceNames(
            count=self.config.resource_name_drs_gcu,
            memory=memory,
            core=core,
            alone=(memory, core),
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """One slice.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        names = self.resources
        size = self._whole(container, names.count, "must be greater than 0")
        if size is not None:
            return DeviceRequest(vendor=NAME, count=1, traits={SLICE: str(size)})
        memory = self._whole(container, names.memory, "must be greater than 0")
        core = self._whole(container, names.core, "must be in range (0,100]", top=100)
        if memory is None and core is None:
            return None
        return DeviceRequest(
            vendor=NAME, count=1, core_percent=core or 0, traits={MEMORY: str(memory or 0)}
        )

    def _whole(
        self, container: Json, resource: str, must: str, *, top: int = INT32_MAX
    ) -> int | None:
        amount = amounts.find(container, resource)
        if amount is None:
            return None
        value = amounts.whole(
            container, resource, low=-INT32_MAX, top=INT32_MAX, wanted="a whole number above 0"
        )
        if value is None or not 0 < value <= top:
            name = container.get("name", "")
            raise InvalidRequest(f"container {name!r}: {resource} {must}, not {amount}")
        return value

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The cards in the node's capacity annotation; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        text = annotations_of(node).get(KEYS.register, "")
        host = str((node.get("metadata") or {}).get("name", ""))
        return cards_of(text, host) if text else ()

    def plugin_alive(self, node: Json) -> bool:
        """While the node has the annotation with its cards."""
        return KEYS.register in annotations_of(node)

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and what the device plugin of this vendor reads."""
        written = device_annotations(placed, NAME, KEYS)
        if not written:
            return written
        slices = {
            container.name: share
            for container in placed.containers
            for share in container.shares
            if share.vendor == NAME
        }
        first = next(iter(slices.values()))
        info = placed.cards[first.uuid].info
        return written | {
            ASSIGNED: "false",
            TIME: unix_ns(placed.now),
            CONTAINERS: json.dumps(
                {name: _assigned(slices[name]) for name in sorted(slices)}, separators=(",", ":")
            ),
            INDEX: info["index"],
            ID: info["index"],
            MINOR: info["minor"],
            SIZE: str(first.slots),
        }

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Writes the amounts asked for in limits and requests alike.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        if self.parse_request(container) is None:
            return Admitted(wants=False)
        names = self.resources
        by_size = amounts.find(container, names.count) is not None
        asked = {
            name: amounts.find(container, name)
            for name in ((names.count,) if by_size else (names.memory, names.core))
        }
        given = {name: amount for name, amount in asked.items() if amount is not None}
        resources = container["resources"]
        for part in ("limits", "requests"):
            resources[part] = (resources.get(part) or {}) | given
        return Admitted(wants=True)


def _assigned(share: DeviceShare) -> dict[str, Any]:
    return {
        "allocated": False,
        "request": share.slots,
        "profileID": share.detail["profileID"],
        "profileName": share.detail["profile"],
    }
