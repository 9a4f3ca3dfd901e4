"""Vendors whose cards have slots only, without memory and cores: Biren and Vastai.

Facts: protocol 1.14 and 1.15. A Vastai card may consist of dies. In die mode a container's dies are
taken from as few cards as possible, and a pod with the policy `mutex` gets no die of a card with
another die in use.
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
"""Rules for a card with slots only; there is no annotation of types."""


def no_amounts(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return a need of one slot, without memory and cores (0 in annotations)."""
    return Need(0, 0)


class SlotVendor(Vendor):
    """Vendor whose containers request only a number of cards."""

    __slots__ = ()

    default_core_percent = 0
    always_parsed = True

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the registered cards with 100 cores each, as in HAMi's scores.

        Raises: InvalidRequest if the annotation is malformed.
        """
        return tuple(replace(card, core_percent=100) for card in super().node_devices(node))


@dataclass(frozen=True, slots=True)
class Biren(SlotVendor):
    """Vendor `Biren`."""

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
    """Return whether a node's cards are dies: its first card decides, as in HAMi."""
    first = min(cards, key=lambda card: card.index, default=None)
    return first is not None and first.info.get("DeviceStrategy") == "die"


def choose_dies(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose dies on as few cards as possible, cards with most free dies first."""
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
    """Return the rules, with `mutex` extended to idle dies of a card in use."""
    rules = list(ask.rules)
    if "mutex" in ask.policies:
        busy = {_aic(card.device) for card in ask.cards if card.used_slots > 0}
        for place, card in enumerate(ask.cards):
            if rules[place] == Rule.FITS and _aic(card.device) in busy:
                rules[place] = Rule.MUTEX
    return rules


def _aic(die: GpuDevice) -> str:
    """Return the card that has the die; a die that registers none counts as a card."""
    aic = die.info.get("AIC")
    return f"aic {aic}" if isinstance(aic, str) else f"die {die.uuid}"


def score_dies(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Return the share of each container's dies on one card, summed; 0 if cards are no dies."""
    dies = {card.device.uuid: card.device for card in before}
    if not in_dies([card.device for card in before]):
        return 0.0
    taken = [[dies[share.uuid] for share in shares] for shares in containers if shares]
    if any("AIC" not in die.info for group in taken for die in group):
        return 0.0
    return sum(largest_share(group, group=_aic) for group in taken)


@dataclass(frozen=True, slots=True)
class Vastai(SlotVendor):
    """Vendor `Vastai`."""

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
        # With `mutex` a node may refuse a pod although enough of its dies are idle.
        chooser_decides=True,
        applies=lambda request, selection, cards: in_dies(cards),
        scorer=score_dies,
    )


Group = Callable[[GpuDevice], Hashable]
"""Function that returns the group of a card."""


def least_groups(cards: Sequence[GpuDevice], count: int, *, group: Group) -> list[GpuDevice]:
    """Return `count` of the cards, from the groups with most of them first.

    Cards of a group are returned in the given order; of equal groups, the one whose first card
    comes first (HAMi leaves that to chance). All cards are returned, in the given order, if there
    are at most `count`.
    """
    if len(cards) <= count:
        return list(cards)
    groups: dict[Hashable, list[GpuDevice]] = {}
    for card in cards:
        groups.setdefault(group(card), []).append(card)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    return [card for members in largest_first for card in members][:count]


def largest_share(cards: Sequence[GpuDevice], *, group: Group) -> float:
    """Return the fraction of the cards in their largest group; 0 for no cards."""
    if not cards:
        return 0.0
    return max(Counter(group(card) for card in cards).values()) / len(cards)
