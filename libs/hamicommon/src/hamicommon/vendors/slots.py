"""Cards that are handed out in slots, without amounts of memory or cores: Biren and Vastai.

Facts: protocol 1.14 and 1.15. A Vastai card may consist of dies. In die mode a container's dies are
taken from as few cards as can be, and a pod with the policy `mutex` gets no die of a card of which
another die is in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from hamicommon.device_config import BirenConfig, VastaiConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s.annotations import NODE_LOCK
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import PARTIAL, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules, tally
from hamicommon.vendors.interface.vendor import AnnotationKeys, Vendor

SLOT_ORDER = (Rule.NOT_HEALTHY, Rule.CORDONED, Rule.UUID, Rule.SLOTS, Rule.MUTEX)
"""Rules for a card: there is nothing else to run out of, and no annotation of types."""


def no_amounts(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """A slot takes neither memory nor cores; annotations have 0 of both."""
    return Need(0, 0)


class SlotVendor(Vendor):
    """A vendor of slots: a container asks for a count only."""

    __slots__ = ()

    default_core_percent = 0
    always_parsed = True

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The registered cards; 100 cores each, whatever is registered, as HAMi's scores count.

        Raises: InvalidRequest when the annotation is malformed.
        """
        return tuple(replace(card, core_percent=100) for card in super().node_devices(node))


@dataclass(frozen=True, slots=True)
class Biren(SlotVendor):
    """The vendor `Biren`."""

    config: BirenConfig

    name = "Biren"
    keys = AnnotationKeys(
        register="hami.io/node-biren-register",
        handshake="hami.io/node-handshake-biren",
        to_allocate="hami.io/Biren-devices-to-allocate",
        allocated="hami.io/Biren-devices-allocated",
        use_uuids="birentech.com/use-gpuuuid",
        avoid_uuids="birentech.com/nouse-gpuuuid",
        lock=NODE_LOCK,
    )
    rules = VendorRules(order=SLOT_ORDER, need=no_amounts)


def in_dies(cards: Sequence[GpuDevice]) -> bool:
    """Whether a node's cards are dies: its first card decides for all, as in HAMi."""
    first = min(cards, key=lambda card: card.index, default=None)
    return first is not None and first.info.get("DeviceStrategy") == "die"


def choose_dies(ask: NodeAsk) -> Chosen | NotChosen:
    """Dy of as few cards as can be, the cards with most free dies first."""
    rules = _with_siblings(ask)
    free = [card.device for card, rule in zip(ask.cards, rules, strict=True) if rule == Rule.FITS]
    wanted = ask.request.count
    if len(free) < wanted:
        return NotChosen(
            reasons=tally(rules) | ({PARTIAL: len(free)} if free else {}),
            refused={card.device.uuid: rule for card, rule in zip(ask.cards, rules, strict=True)},
        )
    picked = free[:1] if wanted == 1 else least_groups(free, wanted, group=_aic)
    return Chosen.of(ask, picked, no_amounts)


def _with_siblings(ask: NodeAsk) -> list[Rule]:
    """The rules, with `mutex` extended to the idle dies of a card that is in use."""
    rules = list(ask.rules)
    if "mutex" in ask.policies:
        busy = {_aic(card.device) for card in ask.cards if card.used_slots > 0}
        for place, card in enumerate(ask.cards):
            if rules[place] == Rule.FITS and _aic(card.device) in busy:
                rules[place] = Rule.MUTEX
    return rules


def _aic(die: GpuDevice) -> str:
    """The card that the die is on; a die that registers none is a card of its own."""
    aic = die.info.get("AIC")
    return f"aic {aic}" if isinstance(aic, str) else f"die {die.uuid}"


def score_dies(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Per container the share of its dies that are on one card, summed; 0 outside die mode."""
    dies = {card.device.uuid: card.device for card in before}
    if not in_dies([card.device for card in before]):
        return 0.0
    taken = [[dies[share.uuid] for share in shares] for shares in containers if shares]
    if any("AIC" not in die.info for group in taken for die in group):
        return 0.0
    return sum(largest_share(group, group=_aic) for group in taken)


@dataclass(frozen=True, slots=True)
class Vastai(SlotVendor):
    """The vendor `Vastai`."""

    config: VastaiConfig

    name = "Vastai"
    keys = AnnotationKeys(
        register="hami.io/node-va-register",
        handshake="hami.io/node-handshake-va",
        to_allocate="hami.io/Vastai-devices-to-allocate",
        allocated="hami.io/Vastai-devices-allocated",
        use_uuids="vastaitech.com/use-gpuuuid",
        avoid_uuids="vastaitech.com/nouse-gpuuuid",
        lock=NODE_LOCK,
    )
    rules = VendorRules(
        order=SLOT_ORDER,
        need=no_amounts,
        chooser=choose_dies,
        # With `mutex` a node may refuse although enough of its dies are idle.
        chooser_decides=True,
        applies=lambda request, selection, cards: in_dies(cards),
        scorer=score_dies,
    )


Group = Callable[[GpuDevice], Hashable]
"""Names the group of a card."""


def least_groups(cards: Sequence[GpuDevice], count: int, *, group: Group) -> list[GpuDevice]:
    """`count` of the cards, from the groups with most of them first.

    Within a group in the order given; of equal groups the one whose first card comes first (HAMi
    leaves that to chance). All of them, in the order given, when there are no more than `count`.
    """
    if len(cards) <= count:
        return list(cards)
    groups: dict[Hashable, list[GpuDevice]] = {}
    for card in cards:
        groups.setdefault(group(card), []).append(card)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    return [card for members in largest_first for card in members][:count]


def largest_share(cards: Sequence[GpuDevice], *, group: Group) -> float:
    """The part of the cards that are in their largest group, above 0 up to 1; 0 for no card."""
    if not cards:
        return 0.0
    return max(Counter(group(card) for card in cards).values()) / len(cards)
