"""Kunlun cards given whole, the vendor `kunlun`. Facts: protocol 1.9.

Which cards go together is in `topology.py`. Slices of Kunlun cards are a vendor of their
own, `vxpu.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hamicommon.device_config import KunlunConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import Selection
from hamicommon.k8s.pod_annotations import card_list
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import NUMA_NOT_FIT, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen, VendorRules
from hamicommon.vendors.interface.standard import device_annotations, indexes
from hamicommon.vendors.interface.vendor import AnnotationKeys, Placed
from hamicommon.vendors.interface.whole_cards import WholeCardVendor
from hamicommon.vendors.kunlun.topology import bubbles, choose

NAME = "kunlun"
MEMORY_MIB = 98304
"""Memory of every card: the node reports none."""
INDEX = "BAIDU_COM_DEVICE_IDX"

USE_UUIDS = (
    card_list("hami.io/use-xpu-uuid", "uuids that a card must have one of"),
    card_list("baidu.com/use-gpuuuid", "uuids that a card must have one of"),
)
AVOID_UUIDS = (
    card_list("hami.io/no-use-xpu-uuid", "uuids that no card may have"),
    card_list("baidu.com/nouse-gpuuuid", "uuids that no card may have"),
)
CHOICES = (*USE_UUIDS, *AVOID_UUIDS)

KEYS = AnnotationKeys(allocated="hami.io/kunlun-allocated", extra=(INDEX,), choices=CHOICES)
NOWHERE = ""
"""No card's uuid: what two lists without a common entry allow."""

LINKED = "as linked cards (1, 2, 4 or 8 of them)"
"""See `NotChosen.limit`."""

_SCORES = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}
"""By what a placement adds to the bubbles of the node."""


def kunlun_selection(annotations: Mapping[str, str]) -> Selection:
    """By uuid; a card must pass both pairs of annotations, for `kunlun` and `XPU` alike."""
    given = [entries for each in USE_UUIDS if (entries := each.read(annotations))]
    use = given[0] if given else ()
    for entries in given[1:]:
        use = tuple(uuid for uuid in use if uuid in entries) or (NOWHERE,)
    avoid = tuple(uuid for each in AVOID_UUIDS for uuid in each.read(annotations) or ())
    return Selection(use_uuids=use, avoid_uuids=avoid)


def choose_by_graph(ask: NodeAsk, fits: Sequence[bool]) -> tuple[DeviceUsage, ...]:
    """The cards to take of those that fit, empty when they don't go together.

    `fits` is by position in `ask.cards`; the list that HAMi's graph is laid over starts with the
    card that the standard loop would look at last.
    """
    cards = tuple(reversed(ask.cards))
    numbers = [usage.device.index for usage in cards]
    positions = choose(numbers, tuple(reversed(fits)), ask.request.count)
    return tuple(cards[position] for position in positions)


def most_linked(ask: NodeAsk, fits: Sequence[bool]) -> int:
    """How many cards, fewer than are wanted, go together."""
    fewer = (
        count
        for count in range(min(ask.request.count - 1, sum(fits)), 0, -1)
        if choose_by_graph(replace(ask, request=replace(ask.request, count=count)), fits)
    )
    return next(fewer, 0)


def choose_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Cards nobody uses that go together, each with all it has."""
    fits = [rule == Rule.FITS for rule in ask.rules]
    picked = choose_by_graph(ask, fits)
    if picked:
        return Chosen(
            shares=tuple(
                DeviceShare(
                    uuid=usage.device.uuid,
                    vendor=NAME,
                    memory_mib=usage.device.memory_mib,
                    core_percent=usage.device.core_percent,
                )
                for usage in picked
            )
        )
    barred = sum(rule == Rule.UUID for rule in ask.rules)
    return NotChosen(
        reasons={REASONS[Rule.UUID]: barred} if barred else {NUMA_NOT_FIT: 1},
        limit=LINKED,
        fitting=most_linked(ask, fits),
    )


def bubble_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Higher where the placement leaves wings that later requests can use.

    As in HAMi, the cards chosen are judged alone, without those in use before.
    """
    index_of = {usage.device.uuid: usage.device.index for usage in before}
    chosen = {index_of[share.uuid] for shares in containers for share in shares}
    used = {usage.device.index for usage in before if usage.used_slots > 0}
    return _SCORES.get(bubbles(chosen) - bubbles(used), 1000.0)


RULES = VendorRules(
    order=(Rule.UUID, Rule.NOT_HEALTHY, Rule.CORDONED, Rule.IN_USE),
    chooser=choose_cards,
    chooser_decides=True,
    scorer=bubble_score,
    scores_alone=True,
)


@dataclass(frozen=True, slots=True)
class KunlunXpu(WholeCardVendor):
    """The vendor `kunlun` (see `interface.vendor.Vendor`)."""

    config: KunlunConfig

    name = NAME
    keys = KEYS
    rules = RULES
    card_name = "kunlun"
    card_memory_mib = MEMORY_MIB
    card_slots = 100
    request_core_percent = 0

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By uuid, see `kunlun_selection`."""
        return kunlun_selection(annotations)

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return as many cards as the kubelet lists, the first half of them on NUMA node 0.

        Raises: InvalidRequest when the capacity is no whole number.
        """
        cards = WholeCardVendor.node_devices(self, node)
        return tuple(replace(card, numa=int(card.index >= len(cards) // 2)) for card in cards)

    def plugin_alive(self, node: Json) -> bool:
        """Always (protocol 1, CheckHealth answers true)."""
        return True

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and the indexes of the cards for the plugin."""
        written = device_annotations(placed, NAME, KEYS)
        if written:
            written[INDEX] = indexes(placed, NAME)
        return written
