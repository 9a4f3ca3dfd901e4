"""Vastai cards: slots of whole cards, or of the dies of which a card (AIC) is made.

Facts: protocol 1.14. In die mode a container's dies are taken from as few cards as can be,
and a pod with the policy `mutex` gets no die of a card of which another die is in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamicommon.device_config import VastaiConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import Selection
from hamicommon.k8s import annotations as keys
from hamicommon.placement.rules import PARTIAL, Rule
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen, VendorRules, tally
from hamicommon.vendors.interface.grouping import largest_share, least_groups
from hamicommon.vendors.interface.slots import SLOT_ORDER, SlotVendor, no_amounts
from hamicommon.vendors.interface.vendor import AnnotationKeys

NAME = "Vastai"

_KEYS = AnnotationKeys(
    register="hami.io/node-va-register",
    handshake="hami.io/node-handshake-va",
    to_allocate="hami.io/Vastai-devices-to-allocate",
    allocated="hami.io/Vastai-devices-allocated",
    use_uuids="vastaitech.com/use-gpuuuid",
    avoid_uuids="vastaitech.com/nouse-gpuuuid",
    lock=keys.NODE_LOCK,
)


def in_dies(cards: Sequence[GpuDevice]) -> bool:
    """Whether a node's cards are dies: its first card decides for all, as in HAMi."""
    first = min(cards, key=lambda card: card.index, default=None)
    return first is not None and first.info.get("DeviceStrategy") == "die"


def choose_dies(ask: NodeAsk) -> Chosen | NotChosen:
    """Dies of as few cards as can be, the cards with most free dies first."""
    rules = _with_siblings(ask)
    free = [card.device for card, rule in zip(ask.cards, rules, strict=True) if rule == Rule.FITS]
    wanted = ask.request.count
    if len(free) < wanted:
        return NotChosen(
            reasons=tally(rules) | ({PARTIAL: len(free)} if free else {}),
            refused={card.device.uuid: rule for card, rule in zip(ask.cards, rules, strict=True)},
        )
    picked = free[:1] if wanted == 1 else least_groups(free, wanted, group=_aic)
    return Chosen(
        shares=tuple(
            DeviceShare(uuid=die.uuid, vendor=NAME, memory_mib=0, core_percent=0) for die in picked
        )
    )


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


_RULES = VendorRules(
    order=SLOT_ORDER,
    need=no_amounts,
    chooser=choose_dies,
    # With `mutex` a node may refuse although enough of its dies are idle.
    chooser_decides=True,
    applies=lambda request, selection, cards: in_dies(cards),
    scorer=score_dies,
)


@dataclass(frozen=True, slots=True)
class Vastai(SlotVendor):
    """The vendor `Vastai` (see `interface.vendor.Vendor`)."""

    config: VastaiConfig

    name = NAME
    keys = _KEYS
    rules = _RULES
