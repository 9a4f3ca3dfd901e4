"""Requests to the chooser of a vendor, with the rules judged card by card in plain Python.

The engine judges the same rules on arrays; the engine's tests cover that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Chosen, NodeAsk, NotChosen, VendorRules
from hamicommon.vendors.interface.vendor import Vendor


def container(
    limits: Mapping[str, Any] | None = None, requests: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A container named `c` with these resources."""
    resources = {"limits": limits, "requests": requests}
    return {"name": "c", "resources": {k: dict(v) for k, v in resources.items() if v is not None}}


def amounts_of(request: DeviceRequest | None) -> tuple[int, int, int | None, int] | None:
    """Count, MiB, percent of the memory, percent of the cores."""
    return request and (
        request.count,
        request.memory_mib,
        request.memory_percent,
        request.core_percent,
    )


def use(cards: Sequence[GpuDevice], **used: tuple[int, int, int]) -> list[DeviceUsage]:
    """Make cards with their used (slots, memory, core), by uuid with `_` for `-`."""
    return [
        DeviceUsage(
            device=card,
            used_slots=slots,
            used_memory_mib=memory,
            used_core_percent=core,
        )
        for card in cards
        for slots, memory, core in [used.get(card.uuid.replace("-", "_"), (0, 0, 0))]
    ]


def put(
    vendor: Vendor,
    cards: Sequence[DeviceUsage],
    limits: Mapping[str, Any],
    *,
    policies: tuple[str, ...] = ("spread",),
    annotations: Mapping[str, str] | None = None,
) -> Chosen | NotChosen:
    """The chooser's answer when a container with these limits meets the cards, last one first."""
    request = vendor.parse_request(container(limits), annotations or {})
    assert request is not None
    selection = vendor.select(annotations or {})
    rules = vendor.rules
    walked = list(reversed(cards))
    assert rules.chooser is not None
    return rules.chooser(
        NodeAsk(
            request=request,
            selection=selection,
            policies=policies,
            cards=walked,
            rules=[judge(rules, card, request, selection, policies) for card in walked],
        )
    )


def judge(
    rules: VendorRules,
    card: DeviceUsage,
    request: DeviceRequest,
    selection: Selection,
    policies: tuple[str, ...] = (),
) -> Rule:
    """The first rule of the vendor's order that the card fails, or FITS (protocol 1.0.4)."""
    device = card.device
    need = rules.need(request, selection, device)
    total = device.core_percent if need.of_core is None else need.of_core
    name = device.type.upper()
    use_types, avoid_types = selection.use_types, selection.avoid_types
    failed = {
        Rule.NOT_HEALTHY: not device.healthy,
        Rule.CORDONED: card.cordoned,
        Rule.TYPE: (bool(use_types) and not any(t and t.upper() in name for t in use_types))
        or any(t and t.upper() in name for t in avoid_types),
        Rule.UUID: (bool(selection.use_uuids) and device.uuid not in selection.use_uuids)
        or device.uuid in selection.avoid_uuids,
        Rule.SLOTS: device.slots <= card.used_slots,
        Rule.MUTEX: "mutex" in policies and card.used_slots > 0,
        Rule.MEMORY: device.memory_mib - card.used_memory_mib < need.memory_mib,
        Rule.CORES: total - card.used_core_percent < need.core,
        Rule.EXCLUSIVE: total == need.core == 100 and card.used_slots > 0,
        Rule.CORES_EXHAUSTED: total != 0 and total == card.used_core_percent and need.core == 0,
    }
    return next((rule for rule in rules.order if failed[rule]), Rule.FITS)


def list_picked(answer: Chosen | NotChosen) -> list[str]:
    """The uuids chosen, in order."""
    assert isinstance(answer, Chosen), answer
    return [share.uuid for share in answer.shares]


def describe_refusal(answer: Chosen | NotChosen, total: int) -> str:
    """The refusal as HAMi writes it; `total` cards of the vendor are on the node."""
    assert isinstance(answer, NotChosen), answer
    if answer.uncounted:
        return answer.uncounted
    over = total if answer.total is None else answer.total
    return ", ".join(sorted(f"{count}/{over} {name}" for name, count in answer.reasons.items()))


def unhealthy(card: GpuDevice) -> GpuDevice:
    """The same card, broken."""
    return replace(card, healthy=False)
