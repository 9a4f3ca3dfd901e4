"""Which Ascend chips of a node a container gets (protocol 1.16, Fit and ScoreNode).

Several chips are taken from as few networks as can be; chips that come in modules of two only as
whole modules; soft slices only on nodes that can cut chips in software.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import PARTIAL, REASONS, Rule
from hamicommon.placement.vendor_policy import (
    Chosen,
    Need,
    NodeAsk,
    NotChosen,
    VendorRules,
    standard_need,
    tally,
)
from hamicommon.vendors.interface.grouping import largest_share, least_groups

MODE = "mode"
"""Trait of a selection: how the pod wants chips cut."""
HAMI_CORE = "hami-core"
"""In software: any memory, and cores as percent."""

SOFT_SLICES = "SoftSlices"
"""In `GpuDevice.info`: whether the chip's node can cut in software."""

MODE_NOT_FIT = REASONS[Rule.MODE]

_NETWORK = "NetworkID"
_FAMILY_910 = "Ascend910"
_NETWORK_WEIGHT = 10
_CHIPS_PER_MODULE = 2


@cache
def rules_for(vendor: str, *, pairs: bool) -> VendorRules:
    """How the engine treats one chip. `pairs`: two chips make a module."""
    networked = vendor.startswith(_FAMILY_910)

    def applies(request: DeviceRequest, selection: Selection, cards: Sequence[GpuDevice]) -> bool:
        if _soft(selection):
            return True
        return request.count > 1 and (pairs or (networked and _all_networked(cards)))

    def decides(request: DeviceRequest, selection: Selection) -> bool:
        return _soft(selection) or (pairs and request.count > 1)

    return VendorRules(
        need=_need,
        chooser=partial(choose_chips, networked=networked, pairs=pairs),
        chooser_rules=(Rule.MODE,),
        chooser_decides=decides,
        applies=applies,
        scorer=score_networks if networked else None,
    )


def choose_chips(ask: NodeAsk, *, networked: bool, pairs: bool) -> Chosen | NotChosen:
    """Chips of whole modules (`pairs`), of few networks (`networked`), or the first that fit."""
    chips = [card.device for card in ask.cards]
    if _soft(ask.selection) and not all(chip.info.get(SOFT_SLICES) for chip in chips):
        return NotChosen(
            reasons={MODE_NOT_FIT: 1},
            refused={
                chip.uuid: Rule.MODE
                for chip, rule in zip(chips, ask.rules, strict=True)
                if rule == Rule.FITS
            },
        )
    free = [chip for chip, rule in zip(chips, ask.rules, strict=True) if rule == Rule.FITS]
    wanted = ask.request.count
    if pairs and wanted > 1:
        picked = _whole_modules(free, wanted)
        if len(picked) != wanted:
            return NotChosen(
                reasons=tally(ask.rules) | {PARTIAL: len(picked)},
                total=wanted,
                limit="in whole modules of two chips",
                fitting=min(len(picked), wanted - 1),
            )
    elif len(free) < wanted:
        return NotChosen(reasons=tally(ask.rules) | ({PARTIAL: len(free)} if free else {}))
    elif wanted > 1 and networked and _all_networked(chips):
        picked = least_groups(free, wanted, group=_network)
    else:
        picked = free[:wanted]
    return Chosen(shares=tuple(_share(ask, chip) for chip in picked))


def _whole_modules(free: Sequence[GpuDevice], wanted: int) -> list[GpuDevice]:
    """Chips of modules of which both are free, until there are `wanted`; fewer, or one more when
    `wanted` is odd, when it can't be met. In the order given."""
    modules: dict[int, list[GpuDevice]] = {}
    for chip in free:
        modules.setdefault(chip.index // _CHIPS_PER_MODULE, []).append(chip)
    picked: list[GpuDevice] = []
    for module in modules.values():
        if len(module) == _CHIPS_PER_MODULE and len(picked) < wanted:
            picked += module
    return picked


def _need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """The standard need; soft slices count cores as percent, whatever the chip registers."""
    need = standard_need(request, selection, card)
    return need._replace(of_core=100) if _soft(selection) else need


def _share(ask: NodeAsk, chip: GpuDevice) -> DeviceShare:
    need = _need(ask.request, ask.selection, chip)
    return DeviceShare(
        uuid=chip.uuid,
        vendor=ask.request.vendor,
        memory_mib=need.memory_mib,
        core_percent=need.core,
    )


def _soft(selection: Selection) -> bool:
    return selection.traits.get(MODE) == HAMI_CORE


def _all_networked(chips: Sequence[GpuDevice]) -> bool:
    return all(_NETWORK in chip.info for chip in chips)


def _network(chip: GpuDevice) -> float | str:
    """The network's number; chips that register something else are grouped by that."""
    network = chip.info.get(_NETWORK)
    return network if isinstance(network, int | float) else repr(network)


def score_networks(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Per container the share of its chips that are in one network, summed, times 10.

    0 when any of the chips registers no network.
    """
    chips = {card.device.uuid: card.device for card in before}
    taken = [[chips[share.uuid] for share in shares] for shares in containers if shares]
    if not all(_all_networked(group) for group in taken):
        return 0.0
    return _NETWORK_WEIGHT * sum(largest_share(group, group=_network) for group in taken)
