"""A probe whose cards are cut on demand: each comes with the profiles it is registered with.

A card that can't be cut (no MIG, no allowed profile, in use and not in MIG mode) is left out, and
looked at again with every probe.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from hamicommon.device_config import MigAllowance
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict, Unavailable

from hami_node_agent.devices.mig_partition import Instance, MigOffer, offer_of, without_places
from hami_node_agent.devices.offer import CardFacts, product_type
from hami_node_agent.devices.ports import DeviceProbe, MigDriver
from hami_node_agent.inventory.hidden import FilteredProbe

logger = logging.getLogger(__name__)


class MigProbe(FilteredProbe):
    """A `DeviceProbe` of cards in MIG mode."""

    def __init__(
        self, probe: DeviceProbe, driver: MigDriver, *, allowlist: Sequence[MigAllowance]
    ) -> None:
        super().__init__(probe, ())
        self._driver = driver
        self._allowlist = allowlist
        self._foreign: tuple[Instance, ...] = ()
        self._outdated = False
        self._left_out: dict[GpuUuid, str] = {}
        self.minors: dict[GpuUuid, int | None] = {}
        """All cards that were ever seen, with the number of each one's file."""

    def set_foreign(self, foreign: Sequence[Instance]) -> None:
        """Instances of others: nothing is offered in their place."""
        if set(foreign) != set(self._foreign):
            self._foreign = tuple(foreign)
            self._outdated = True

    async def cards(self) -> tuple[CardFacts, ...]:
        """See the port."""
        found, left_out = [], {}
        for card in await super().cards():
            self.minors[card.uuid] = card.minor
            try:
                offer = await self._offer(card)
            except (Conflict, Unavailable) as exc:
                left_out[card.uuid] = str(exc)
                continue
            found.append(replace(card, mig=offer))
        for uuid, reason in left_out.items():
            if self._left_out.get(uuid) != reason:
                logger.error("card left out", extra={"uuid": uuid, "reason": reason})
        self._left_out = left_out
        return tuple(found)

    async def reload(self) -> bool:
        """See the port."""
        outdated, self._outdated = self._outdated or bool(self._left_out), False
        return await super().reload() or outdated

    async def _offer(self, card: CardFacts) -> MigOffer:
        """Raises: Conflict with the reason why it has none; Unavailable."""
        product = product_type(card.name)
        allowed = next(
            (each.profiles for each in self._allowlist if any(m in product for m in each.models)),
            (),
        )
        if not allowed:
            raise Conflict(f"migProfileAllowlist has no models entry that is part of {product!r}")
        offer = offer_of(allowed, await self._driver.profiles(card.uuid))
        if offer is None:
            raise Conflict(f"{product} has none of the profiles {', '.join(allowed)}")
        return without_places(offer, [each for each in self._foreign if each.card == card.uuid])
