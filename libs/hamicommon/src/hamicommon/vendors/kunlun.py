"""Kunlun cards: whole cards, the vendor `kunlun` (protocol 1.9), or slices, `XPU` (1.10).

Both choose cards by HAMi's graph of eight cards in two wings. The wings are positions in the
preference list, as in HAMi, not the cards' own indexes; only the links between the wings use the
indexes. A card is cut into equal parts: every later slice must have the size of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hamicommon.device_config import KunlunConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.annotations import NODE_LOCK, annotations_of
from hamicommon.k8s.pod_annotations import card_list
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import NUMA_NOT_FIT, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    ListedCards,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    indexes,
)

WING = 4
"""Number of cards in the left wing: positions 0-3; the rest are the right wing."""

PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
"""Linked cards of different wings, by index."""
QUADS = (
    (0, 1, 4, 5),
    (2, 3, 6, 7),
    (0, 2, 4, 6),
    (1, 3, 5, 7),
    (0, 3, 4, 7),
    (1, 2, 5, 6),
)
"""Linked sets of two such pairs, by index."""

_ROOM = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""Number of free cards that a wing should have for each legal count below eight, the best first."""


def choose(indexes: Sequence[int], free: Sequence[bool], count: int) -> tuple[int, ...]:
    """Return positions of `count` linked cards to take, in order; empty if there are none.

    `indexes` and `free` are by position in the preference list.
    """
    if count == 2 * WING:
        whole = tuple(range(2 * WING))
        return whole if len(free) >= 2 * WING and all(free[: 2 * WING]) else ()
    left = [position for position in range(len(free)) if free[position] and position < WING]
    right = [position for position in range(len(free)) if free[position] and position >= WING]
    if max(len(left), len(right)) >= count:
        for room in _ROOM.get(count, ()):
            for wing in (left, right):
                if len(wing) == room:
                    return tuple(wing[:count])
    return _across(indexes, (*left, *right), count)


def _across(indexes: Sequence[int], free: Sequence[int], count: int) -> tuple[int, ...]:
    """Return linked cards of both wings."""
    position = {indexes[place]: place for place in free}
    groups = {2: PAIRS, 4: QUADS}.get(count, ())
    feasible = [group for group in groups if position.keys() >= set(group)]
    if not feasible:
        return ()
    best = feasible[0]
    if count == WING and len(free) == WING + 2:
        # The cards left over should still be a linked pair.
        kept = (group for group in feasible if _is_linked_pair(position.keys() - set(group)))
        best = next(kept, feasible[-1])
    return tuple(position[index] for index in best)


def _is_linked_pair(rest: Iterable[int]) -> bool:
    first, second = sorted(rest)
    same_wing = second < 2 * WING and first // WING == second // WING
    return same_wing or (first, second) in PAIRS


def bubbles(used: Iterable[int]) -> int:
    """Return the score by which cards in use (by index) break up their wings for later requests."""
    wings = [0, 0]
    for index in used:
        wings[index >= WING] += 1
    if wings == [0, 0]:
        return 1
    return sum({WING: 0, 1: 2}.get(taken, 1) for taken in wings)


USE_UUIDS = (
    card_list("hami.io/use-xpu-uuid", "uuids that a card must have one of"),
    card_list("baidu.com/use-gpuuuid", "uuids that a card must have one of"),
)
AVOID_UUIDS = (
    card_list("hami.io/no-use-xpu-uuid", "uuids that no card may have"),
    card_list("baidu.com/nouse-gpuuuid", "uuids that no card may have"),
)
CHOICES = (*USE_UUIDS, *AVOID_UUIDS)
NOWHERE = ""
"""Uuid that no card has: two lists without a common entry allow no card."""

LINKED = "as linked cards (1, 2, 4 or 8 of them)"
"""Text of the limit; see `NotChosen.limit`."""


class KunlunVendor(Vendor):
    """Base of the Kunlun vendors; a card must pass the uuid annotations of both."""

    __slots__ = ()

    config: KunlunConfig

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Return the cards that the pod's annotations allow, for `kunlun` and `XPU` alike."""
        given = [entries for each in USE_UUIDS if (entries := each.read(annotations))]
        use = given[0] if given else ()
        for entries in given[1:]:
            use = tuple(uuid for uuid in use if uuid in entries) or (NOWHERE,)
        avoid = tuple(uuid for each in AVOID_UUIDS for uuid in each.read(annotations) or ())
        return Selection(use_uuids=use, avoid_uuids=avoid)


def choose_by_graph(ask: NodeAsk, fits: Sequence[bool]) -> tuple[GpuDevice, ...]:
    """Choose linked cards among those that fit; empty if there are not enough.

    `fits` is by position in `ask.cards`; the list under HAMi's graph starts with the card that the
    standard loop would check last.
    """
    cards = [usage.device for usage in reversed(ask.cards)]
    numbers = [card.index for card in cards]
    positions = choose(numbers, tuple(reversed(fits)), ask.request.count)
    return tuple(cards[position] for position in positions)


def most_linked(ask: NodeAsk, fits: Sequence[bool]) -> int:
    """Return the largest number of linked cards, below the requested one."""
    fewer = (
        count
        for count in range(min(ask.request.count - 1, sum(fits)), 0, -1)
        if choose_by_graph(replace(ask, request=replace(ask.request, count=count)), fits)
    )
    return next(fewer, 0)


def _reasons(ask: NodeAsk, *rules: Rule) -> dict[str, int]:
    """Return HAMi's reasons, which name one rule."""
    for rule in rules:
        refused = sum(rule == each for each in ask.rules)
        if refused:
            return {REASONS[rule]: refused}
    return {NUMA_NOT_FIT: 1}


def choose_whole_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose unused linked cards, each granted whole."""
    fits = [rule == Rule.FITS for rule in ask.rules]
    picked = choose_by_graph(ask, fits)
    if picked:
        return Chosen.of(ask, picked, lambda _, __, card: Need(card.memory_mib, card.core_percent))
    reasons = _reasons(ask, Rule.UUID)
    return NotChosen(reasons=reasons, limit=LINKED, fitting=most_linked(ask, fits))


def bubble_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Return a higher score the more later requests can use the wings after the placement.

    As in HAMi, only the chosen cards are scored, without those already in use.
    """
    index_of = {usage.device.uuid: usage.device.index for usage in before}
    chosen = {index_of[share.uuid] for shares in containers for share in shares}
    used = {usage.device.index for usage in before if usage.used_slots > 0}
    return {-1: 3000.0, 0: 2000.0, 2: 0.0}.get(bubbles(chosen) - bubbles(used), 1000.0)


@dataclass(frozen=True, slots=True)
class KunlunXpu(KunlunVendor):
    """Vendor `kunlun`, whose cards are granted whole."""

    config: KunlunConfig

    name = "kunlun"
    keys = AnnotationKeys(
        allocated="hami.io/kunlun-allocated", extra=("BAIDU_COM_DEVICE_IDX",), choices=CHOICES
    )
    rules = VendorRules(
        order=(Rule.UUID, Rule.NOT_HEALTHY, Rule.CORDONED, Rule.IN_USE),
        chooser=choose_whole_cards,
        chooser_decides=True,
        scorer=bubble_score,
        scores_alone=True,
    )
    default_core_percent = 0
    # The node reports no memory.
    listed_cards = ListedCards(name="kunlun", memory_mib=98304, slots=100)

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return as many cards as the kubelet lists, the first half on NUMA node 0.

        Raises: InvalidRequest if the capacity is not a whole number.
        """
        cards = KunlunVendor.node_devices(self, node)
        return tuple(replace(card, numa=int(card.index >= len(cards) // 2)) for card in cards)

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the indexes of the cards."""
        return dict.fromkeys(self.keys.extra, indexes(placed, self.name))


SIZES = (24576, 49152, 98304)
"""MiB of a slice: a quarter, a half, or all of a card; more counts as all."""


def round_up(memory_mib: int) -> int:
    """Return the smallest size of slice with this much memory."""
    return next((size for size in SIZES if memory_mib <= size), SIZES[-1])


def choose_cut_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose linked cards with room for one more slice of equal size."""
    free = [rule == Rule.FITS for rule in ask.rules]
    equal = [_in_equal_parts(usage, ask.request.memory_mib) for usage in ask.cards]
    fits = [a and b for a, b in zip(free, equal, strict=True)]
    picked = choose_by_graph(ask, fits)
    if picked:
        return Chosen.of(ask, picked)
    return NotChosen(
        reasons=_reasons(ask, Rule.MUTEX, Rule.UUID),
        refused={
            usage.device.uuid: Rule.SLICE_SIZE
            for usage, is_free, is_equal in zip(ask.cards, free, equal, strict=True)
            if is_free and not is_equal
        },
        limit=LINKED,
        fitting=most_linked(ask, fits),
    )


def _in_equal_parts(usage: DeviceUsage, part: int) -> bool:
    return usage.used_slots == 0 or usage.used_memory_mib // usage.used_slots == part


@dataclass(frozen=True, slots=True)
class KunlunVxpu(KunlunVendor):
    """Vendor `XPU`, whose cards are granted in slices."""

    config: KunlunConfig

    name = "XPU"
    keys = AnnotationKeys(
        register="hami.io/node-register-xpu",
        handshake="hami.io/node-handshake-xpu",
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
        choices=CHOICES,
        lock=NODE_LOCK,
    )
    rules = VendorRules(
        order=(
            Rule.MUTEX,
            Rule.UUID,
            Rule.NOT_HEALTHY,
            Rule.CORDONED,
            Rule.SLOTS,
            Rule.MEMORY,
        ),
        chooser=choose_cut_cards,
        chooser_rules=(Rule.SLICE_SIZE,),
        chooser_decides=True,
        exact=True,
    )

    @property
    def resources(self) -> ResourceNames:
        """Resource names: count and memory; cores follow from the memory."""
        return ResourceNames(
            count=self.config.resource_v_count_name, memory=self.config.resource_v_memory_name
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return the request for slices of a quarter, a half or (without memory) all of a card.

        Raises: InvalidRequest naming container, resource, value and the expected value.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        is_sized = amounts.find(container, self.resources.memory) is not None
        asked = amounts.memory(container, self.resources.memory)
        part = round_up(asked) if is_sized else SIZES[-1]
        return DeviceRequest(
            vendor=self.name,
            count=count,
            memory_mib=part,
            memory_percent=None if is_sized else 100,
            core_percent=part * 100 // SIZES[-1],
        )

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Write the size of the slice to be granted to limits and requests.

        Raises: InvalidRequest if the container asks for something that can never be granted.
        """
        names = self.resources
        if not amounts.asks(container, names.count, limits_only=True):
            return MutateResult(wants=False)
        self.parse_request(container, annotations_of(pod))
        if amounts.find(container, names.memory, limits_only=True) is None:
            return MutateResult(wants=True)
        asked = amounts.memory(container, names.memory, limits_only=True)
        amounts.write(container, {names.memory: str(round_up(asked))})
        if asked <= SIZES[-1]:
            return MutateResult(wants=True)
        return MutateResult(
            wants=True,
            warnings=(
                f"container {container.get('name', '')!r}: {names.memory} {asked} is more than "
                f"one card has and is taken as {SIZES[-1]}",
            ),
        )
