"""What an allocation takes from each of its cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Footprint, footprints
from hamicommon.domain.ids import GpuUuid
from hamicommon.ledger.model import Draft, Rules
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules

WHOLE_CARD_CORE_PERCENT = 100

_STANDARD = VendorRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDemand:
    """What one allocation takes from one card, with the rules that the counters can't show."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    exclusive: bool = False
    """A container wants all cores of the card: nobody else may be there (protocol 1.0.4, 13)."""
    coreless: bool = False
    """A container wants no cores: the card's must not be used up (rule 14)."""
    respects_cordon: bool = True
    """A cordoned card is closed for it."""
    seen: int | None = None
    """The card must still be of this version; None: any will do."""
    core_total: int | None = None
    """The card's cores as this slice counts them; None: as the card registers them."""
    details: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """`{"role", "detail"}` of every slice that has a detail."""


_NONE: Mapping[Any, Any] = MappingProxyType({})


def wanted_by(draft: Draft, rules: Rules) -> tuple[CardDemand, ...]:
    """`demands` of a draft."""
    return demands(
        draft.placement.containers, rules, seen=draft.seen, core_totals=draft.core_totals
    )


def demands(
    containers: tuple[ContainerGrant, ...],
    rules: Rules = _NONE,
    *,
    seen: Mapping[GpuUuid, int] = _NONE,
    core_totals: Mapping[GpuUuid, int] = _NONE,
) -> tuple[CardDemand, ...]:
    """Per card, ordered by uuid (the order in which rows are locked)."""
    slices: dict[GpuUuid, list[tuple[ContainerGrant, DeviceShare]]] = {}
    for container in containers:
        for share in container.shares:
            slices.setdefault(share.uuid, []).append((container, share))
    return tuple(
        _demand(
            card,
            slices[card.uuid],
            rules,
            seen=seen.get(card.uuid),
            core_total=core_totals.get(card.uuid),
        )
        for card in footprints(containers)
    )


def _demand(
    card: Footprint,
    slices: Sequence[tuple[ContainerGrant, DeviceShare]],
    rules: Rules,
    *,
    seen: int | None,
    core_total: int | None,
) -> CardDemand:
    own = rules.get(slices[0][1].vendor, _STANDARD)
    cores = [share.core_percent for _, share in slices]
    whole = max(cores) >= WHOLE_CARD_CORE_PERCENT
    # On the very version that was seen, every rule of the vendor was asked by its chooser.
    exact = own.exact and seen is not None
    return CardDemand(
        uuid=card.uuid,
        slots=card.slots,
        memory_mib=card.memory_mib,
        core_percent=card.core_percent,
        exclusive=whole and not exact and Rule.EXCLUSIVE in own.order,
        coreless=min(cores) == 0 and not exact and Rule.CORES_EXHAUSTED in own.order,
        respects_cordon=Rule.CORDONED in own.order,
        seen=seen if exact else None,
        core_total=core_total,
        details=tuple(
            {"role": container.role, "detail": dict(share.detail)}
            for container, share in slices
            if share.detail
        ),
    )
