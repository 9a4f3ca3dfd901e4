"""Enflame cards: whole cards, the vendor `GCU` (protocol 1.11), or slices, `Enflame` (1.12).

A card is cut into slices of the sizes that its profiles have. The value of the count resource is
the size of one slice, not a number of cards; memory and cores may be asked for instead, and then
the smallest profile with enough of both is taken. A slice takes as many slots as its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hamicommon.device_config import INT32_MAX, EnflameConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import REASONS, Rule
from hamicommon.placement.vendor_policy import (
    STANDARD_ORDER,
    Chosen,
    Need,
    NodeAsk,
    NotChosen,
    VendorRules,
    tally,
)
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    ListedCards,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    unix_ns,
)

WHOLE = 100
"""Memory of a card in percent, as the node reports none."""


@dataclass(frozen=True, slots=True)
class EnflameGcu(Vendor):
    """Vendor `GCU`, whose cards are granted whole."""

    config: EnflameConfig

    name = "GCU"
    keys = AnnotationKeys(
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        allocated="hami.io/enflame-gcu-devices-allocated",
    )
    rules = VendorRules(order=(Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE, Rule.IN_USE))
    default_memory_mib = WHOLE
    listed_cards = ListedCards(name="GCU", memory_mib=WHOLE)
    alive_while_listed = True

    @property
    def resources(self) -> ResourceNames:
        """Resource names: only the count."""
        return ResourceNames(count=self.config.resource_name_gcu)


NAME = "Enflame"
CAPACITY = "enflame.com/gcu-drs-capacity"
"""Annotation of a node: its cards that can be cut, and their profiles."""

SLICE = "slice"
"""Trait of a request: the size of the slice."""
MEMORY = "memory"
"""Trait of a request: the memory, in the unit that `_gib` guesses."""

_PROFILE = re.compile(r"([1-9][0-9]{0,3})g\.([1-9][0-9]{0,5})gb")


class Profile(NamedTuple):
    """Size into which a card can be cut; sorted by size, then memory."""

    size: int
    memory_gib: int
    name: str
    id: str


def profiles_of(card: GpuDevice) -> list[Profile]:
    """Return the profiles of a card, the smallest first."""
    return sorted(_profile(name, id_) for name, id_ in card.info["profiles"].items())


def cards_of(text: str, host: str) -> tuple[GpuDevice, ...]:
    """Parse the cards in the annotation of the node `host`.

    Raises: InvalidRequest when it is malformed.
    """
    try:
        capacity: Any = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{CAPACITY} is not JSON: {exc}") from exc
    if not isinstance(capacity, dict):
        raise InvalidRequest(f"{CAPACITY} is not a JSON object of devices and profiles")
    devices, profiles = capacity.get("devices"), capacity.get("profiles")
    if not isinstance(devices, list) or not all(isinstance(entry, dict) for entry in devices):
        raise InvalidRequest(f"{CAPACITY}: devices is not a list of objects")
    if not isinstance(profiles, dict) or not profiles:
        raise InvalidRequest(f"{CAPACITY}: expected at least one profile under profiles")
    known = [_profile(name, str(id_)) for name, id_ in profiles.items()]
    return tuple(_card(entry, known, host) for entry in devices)


def _profile(name: str, id_: str) -> Profile:
    match = _PROFILE.fullmatch(name)
    if match is None:
        raise InvalidRequest(f"{CAPACITY}: profile {name!r} is not written like 2g.12gb")
    return Profile(int(match[1]), int(match[2]), name, id_)


def _card(entry: Mapping[str, Any], profiles: Sequence[Profile], host: str) -> GpuDevice:
    index, capacity = str(entry.get("index", "")), str(entry.get("capacity", ""))
    if not re.fullmatch("[0-9]{1,4}", index):
        raise InvalidRequest(f"{CAPACITY}: index {index!r} of a device is not a whole number")
    if not re.fullmatch("0*[1-9][0-9]{0,5}", capacity):
        raise InvalidRequest(
            f"{CAPACITY}: capacity of device {index} is {capacity!r}: expected a whole number "
            "above 0"
        )
    return GpuDevice(
        uuid=GpuUuid(f"{host}-enflame-drs-{index}"),
        index=int(index),
        vendor=NAME,
        type=NAME,
        slots=int(capacity),
        memory_mib=max(profile.memory_gib for profile in profiles) * 1024,
        core_percent=100,
        mode="",
        info={
            "index": index,
            "minor": str(entry.get("minor", "")),
            "profiles": {profile.name: profile.id for profile in profiles},
            "maxSlice": max(profile.size for profile in profiles),
        },
    )


def profile_for(request: DeviceRequest, card: GpuDevice) -> Profile | None:
    """Return the profile that the request gets on the card; None if none is large enough."""
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
    """Return the memory in GiB; more than twice the largest profile was meant in MiB."""
    return -(-memory // 1024) if memory > 2 * largest else memory


def _core(profile: Profile, card: GpuDevice) -> int:
    """Return the percent of the card's cores that belong to the profile."""
    return -(-profile.size * 100 // int(card.info["maxSlice"]))


def need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return the amounts of the profile; one slot, because HAMi checks only whether one is free."""
    profile = profile_for(request, card)
    if profile is None:
        return Need(0, 0)
    return Need(profile.memory_gib * 1024, _core(profile, card))


def choose_card(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose the first card that fits, with slots of the slice's size and the profile's id."""
    profiles = [profile_for(ask.request, usage.device) for usage in ask.cards]
    walk = list(zip(ask.cards, ask.rules, profiles, strict=True))
    for usage, rule, profile in walk:
        if rule == Rule.FITS and profile is not None:
            share = DeviceShare(
                uuid=usage.device.uuid,
                vendor=NAME,
                memory_mib=profile.memory_gib * 1024,
                core_percent=_core(profile, usage.device),
                slots=profile.size,
                detail={"profile": profile.name, "profileID": profile.id},
            )
            return Chosen(shares=(share,))
    return NotChosen(
        reasons=tally(ask.rules) if any(profiles) else {REASONS[Rule.MODE]: 1},
        refused={
            usage.device.uuid: Rule.MODE
            for usage, rule, profile in walk
            if rule == Rule.FITS and profile is None
        },
    )


@dataclass(frozen=True, slots=True)
class EnflameDrs(Vendor):
    """Vendor `Enflame`, whose cards are granted in slices."""

    config: EnflameConfig

    name = NAME
    keys = AnnotationKeys(
        register=CAPACITY,
        allocated="hami.io/enflame-vgpu-devices-allocated",
        use_uuids="enflame.com/use-gpuuuid",
        avoid_uuids="enflame.com/nouse-gpuuuid",
        extra=(
            "enflame.com/gcu-assigned",
            "enflame.com/gcu-assigned-time",
            "enflame.com/gcu-assigned-index",
            "enflame.com/gcu-assigned-id",
            "enflame.com/gcu-assigned-minor",
            "enflame.com/gcu-request-size",
            "assigned-containers",
        ),
    )
    rules = VendorRules(
        order=STANDARD_ORDER[: STANDARD_ORDER.index(Rule.EXCLUSIVE)],
        need=need,
        chooser=choose_card,
        chooser_rules=(Rule.MODE,),
        chooser_decides=True,
    )

    @property
    def resources(self) -> ResourceNames:
        """Resource names: the size, or memory and cores."""
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
        """Return the request for one slice.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        names = self.resources
        size = _positive(container, names.count, "must be greater than 0")
        if size is not None:
            return DeviceRequest(vendor=NAME, count=1, traits={SLICE: str(size)})
        memory = _positive(container, names.memory, "must be greater than 0")
        core = _positive(container, names.core, "must be in range (0,100]", top=100)
        if memory is None and core is None:
            return None
        return DeviceRequest(
            vendor=NAME, count=1, core_percent=core or 0, traits={MEMORY: str(memory or 0)}
        )

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the cards in the node's capacity annotation; empty if it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        text = annotations_of(node).get(CAPACITY, "")
        host = str((node.get("metadata") or {}).get("name", ""))
        return cards_of(text, host) if text else ()

    def plugin_alive(self, node: Json) -> bool:
        """Return whether the node has the annotation with its cards."""
        return CAPACITY in annotations_of(node)

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the first slice and each container's profile."""
        first = placed.shares_of(NAME)[0]
        info = placed.cards[first.uuid].info
        assigned = {
            container.name: {
                "allocated": False,
                "request": share.slots,
                "profileID": share.detail["profileID"],
                "profileName": share.detail["profile"],
            }
            for container in sorted(placed.containers, key=lambda each: each.name)
            for share in container.shares
            if share.vendor == NAME
        }
        values = (
            "false",
            unix_ns(placed.now),
            info["index"],
            info["index"],
            info["minor"],
            str(first.slots),
            json.dumps(assigned, separators=(",", ":")),
        )
        return dict(zip(self.keys.extra, values, strict=True))

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Write the requested amounts to limits and requests alike.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        if self.parse_request(container) is None:
            return MutateResult(wants=False)
        names = self.resources
        by_size = amounts.find(container, names.count) is not None
        asked = {
            name: amounts.find(container, name)
            for name in ((names.count,) if by_size else (names.memory, names.core))
        }
        amounts.write(container, {name: each for name, each in asked.items() if each is not None})
        return MutateResult(wants=True)


def _positive(container: Json, resource: str, must: str, *, top: int = INT32_MAX) -> int | None:
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
