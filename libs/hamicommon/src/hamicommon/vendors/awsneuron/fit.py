"""Which Neuron devices and which of their cores a container gets (protocol 1.13, Fit).

One device: the first in order with enough free cores. Several: devices that are wholly free and
lie side by side, because collectives run over the ring between neighbours. A request for cores
counts two to a slice; devices with more of them give several slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import NODE_INSUFFICIENT, NUMA_NOT_FIT, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules, tally

NAME = "AWSNeuron"

CORES = "cores"
"""Trait of a request: the NeuronCores asked for; absent when whole devices are."""

BY_CORE = "neuroncore"
"""In the detail of a slice that was asked for by cores."""

USUAL_CORES = 2
"""Cores of a device (Trainium1, Inferentia2) until a device is known, as in HAMi."""

_ALIGNED_SIZES = frozenset({1, 4, 8, 16})
"""Neighbours that can be had on other than Inferentia instances, each at a multiple of its size."""

_ORDER = (
    Rule.NOT_HEALTHY,
    Rule.CORDONED,
    Rule.UUID,
    Rule.SLOTS,
    Rule.MUTEX,
    Rule.CORES,
)


def cores_of(mask: int) -> int:
    """How many cores a mask names."""
    return mask.bit_count()


def choose_devices(ask: NodeAsk) -> Chosen | NotChosen:
    """One device with enough free cores, or neighbours that are wholly free."""
    if not ask.cards:
        return NotChosen(uncounted=NODE_INSUFFICIENT)
    each = min(cores_of(card.device.core_percent) for card in ask.cards)
    wanted = _asked_cores(ask.request)
    if wanted is None:
        count, cores = ask.request.count, None
    elif wanted <= each:
        count, cores = 1, wanted
    elif wanted % each or each % USUAL_CORES:
        return NotChosen(
            reasons={REASONS[Rule.CORES]: len(ask.cards)},
            limit=f"as whole devices of {each} cores",
            fitting=wanted // each * each // USUAL_CORES,
        )
    else:
        count, cores = wanted // each, None
    if count > len(ask.cards):
        return NotChosen(uncounted=NODE_INSUFFICIENT)
    if count > 1:
        return _neighbours(ask, count)
    return _one_device(ask, cores)


def _one_device(ask: NodeAsk, cores: int | None) -> Chosen | NotChosen:
    """The first device with `cores` free cores (None: all of them), its lowest ones."""
    rules = list(ask.rules)
    for place, card in enumerate(ask.cards):
        if rules[place] != Rule.FITS:
            continue
        all_cores = card.device.core_percent
        mask = _lowest(all_cores & ~card.used_core_percent, cores or cores_of(all_cores))
        if mask is not None:
            return Chosen(shares=_shares(card.device, mask, ask.request))
        rules[place] = Rule.CORES
    refused = {card.device.uuid: rule for card, rule in zip(ask.cards, rules, strict=True)}
    return NotChosen(reasons=tally(rules), refused=refused)


def _neighbours(ask: NodeAsk, count: int) -> Chosen | NotChosen:
    """The first run of `count` free devices by index; the uuid annotations do not apply (1.0.2)."""
    by_index = sorted(zip(ask.cards, ask.rules, strict=True), key=lambda pair: pair[0].device.index)
    free = [card.used_slots == 0 and rule in (Rule.FITS, Rule.UUID) for card, rule in by_index]
    start = _run(by_index[0][0], free, count)
    if start is not None:
        run = [card.device for card, _ in by_index[start : start + count]]
        return Chosen(
            shares=tuple(
                share
                for device in run
                for share in _shares(device, device.core_percent, ask.request)
            )
        )
    fewer = (n for n in range(count - 1, 0, -1) if _run(by_index[0][0], free, n) is not None)
    return NotChosen(
        reasons={NUMA_NOT_FIT: 1},
        refused={
            card.device.uuid: Rule.IN_USE if card.used_slots else Rule.FITS
            for card, rule in by_index
            if rule in (Rule.FITS, Rule.UUID)
        },
        limit="as free neighbours",
        fitting=next(fewer, 0) * ask.request.count // count,
    )


def _run(first: DeviceUsage, free: Sequence[bool], count: int) -> int | None:
    """Index at which the first run of `count` free devices begins."""
    starts = _starts(first, len(free), count)
    fitting = (n for n in starts if n + count <= len(free) and all(free[n : n + count]))
    return next(fitting, None)


def _starts(first: DeviceUsage, devices: int, count: int) -> Sequence[int]:
    """Return the places at which a run may begin."""
    if "inf" in str(first.device.info.get("AWSNodeType", "")).lower():
        return range(devices)
    return range(0, devices, count) if count in _ALIGNED_SIZES else ()


def _lowest(free: int, cores: int) -> int | None:
    """Mask of the lowest `cores` bits of `free`; None when it has fewer."""
    mask = 0
    for _ in range(cores):
        lowest = free & -free
        if not lowest:
            return None
        mask |= lowest
        free ^= lowest
    return mask


def _shares(device: GpuDevice, mask: int, request: DeviceRequest) -> tuple[DeviceShare, ...]:
    """The cores of one device: in one slice, or two to a slice, as the request counts them."""
    masks = [mask]
    if CORES in request.traits and cores_of(mask) > USUAL_CORES:
        masks = []
        while mask:
            pair = _lowest(mask, USUAL_CORES) or mask
            masks.append(pair)
            mask ^= pair
    return tuple(
        DeviceShare(
            uuid=device.uuid,
            vendor=NAME,
            memory_mib=0,
            core_percent=part,
            detail={BY_CORE: True} if CORES in request.traits else {},
        )
        for part in masks
    )


def _asked_cores(request: DeviceRequest) -> int | None:
    cores = request.traits.get(CORES)
    return None if cores is None else int(cores)


def _least_mask(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """The smallest mask that has as many cores as one slice needs: no free mask below it will do.

    The chooser counts the bits.
    """
    each = cores_of(card.core_percent)
    wanted = _asked_cores(request)
    return Need(0, (1 << min(each if wanted is None else wanted, each)) - 1)


RULES = VendorRules(
    order=_ORDER,
    need=_least_mask,
    # A slice is two cores at most, and a device may have more of them.
    reuses_card=True,
    chooser=choose_devices,
    chooser_rules=(Rule.IN_USE,),
    chooser_decides=True,
    exact=True,
)
