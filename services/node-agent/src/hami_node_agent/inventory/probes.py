"""Probes that hide some cards, or that show cards for MIG slices.

HAMi's `filterdevices` (protocol 5.2): neither the kubelet nor the scheduler sees a hidden card, and
nothing that happens to it matters. Cards that are cut on demand come with the profiles that they
are registered with; one that can't be cut (no MIG, no allowed profile, in use and not in MIG mode)
is left out, and looked at again with every probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from hamicommon.device_config import MigAllowance
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict, Unavailable
from hamicommon.events import DeviceSample

from hami_node_agent.devices.health import Failure
from hami_node_agent.devices.mig_partition import Instance, MigOffer, offer_of, without_places
from hami_node_agent.devices.offer import CardFacts, product_type
from hami_node_agent.devices.ports import DeviceProbe, MigDriver
from hami_node_agent.devices.processes import CardProcesses
from hami_node_agent.devices.topology import CardLinks

logger = logging.getLogger(__name__)


class FilteredProbe:
    """Probe (`DeviceProbe`) without the hidden cards."""

    def __init__(
        self,
        probe: DeviceProbe,
        hidden: Collection[str],
        *,
        on_hidden_xid: Callable[[GpuUuid, int], None] = lambda _card, _xid: None,
    ) -> None:
        """`hidden`: uuids and NVML indexes."""
        self._probe = probe
        self._hidden = frozenset(hidden)
        self._on_hidden_xid = on_hidden_xid
        self._hidden_uuids: frozenset[GpuUuid] = frozenset()

    async def cards(self) -> tuple[CardFacts, ...]:
        """Return the cards that are not hidden."""
        found = await self._probe.cards()
        self._hidden_uuids = frozenset(
            card.uuid for card in found if {card.uuid, str(card.index)} & self._hidden
        )
        return tuple(card for card in found if card.uuid not in self._hidden_uuids)

    async def links(self) -> tuple[CardLinks, ...]:
        """Return the links of cards that are not hidden."""
        found = await self._probe.links()
        return tuple(card for card in found if card.uuid not in self._hidden_uuids)

    async def reload(self) -> bool:
        """Initialise NVML again if the driver was reloaded."""
        return await self._probe.reload()

    async def failing(self) -> Mapping[GpuUuid, Failure]:
        """Return failing cards that are not hidden."""
        failing = await self._probe.failing()
        return {uuid: why for uuid, why in failing.items() if uuid not in self._hidden_uuids}

    async def watch_events(self) -> None:
        """Register for XID events."""
        await self._probe.watch_events()

    async def next_xid(self) -> tuple[GpuUuid | None, int] | None:
        """Wait for an XID event; those of hidden cards are passed to `on_hidden_xid`."""
        event = await self._probe.next_xid()
        if event is not None and event[0] is not None and event[0] in self._hidden_uuids:
            self._on_hidden_xid(event[0], event[1])
            return None
        return event

    async def samples(self) -> tuple[DeviceSample, ...]:
        """Sample the cards that are not hidden."""
        samples = await self._probe.samples()
        return tuple(sample for sample in samples if sample.uuid not in self._hidden_uuids)

    async def processes(self) -> Mapping[str, CardProcesses]:
        """Read the processes on cards that are not hidden."""
        found = await self._probe.processes()
        return {uuid: of for uuid, of in found.items() if uuid not in self._hidden_uuids}


class MigProbe(FilteredProbe):
    """Probe of cards in MIG mode, with the profiles that can be created."""

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
        """Set other owners' instances, whose places are not offered."""
        if set(foreign) != set(self._foreign):
            self._foreign = tuple(foreign)
            self._outdated = True

    async def cards(self) -> tuple[CardFacts, ...]:
        """Return the cards with their offers; cards without one are left out."""
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
                logger.error("Ignoring a card", extra={"uuid": uuid, "reason": reason})
        self._left_out = left_out
        return tuple(found)

    async def reload(self) -> bool:
        """Initialise NVML again if the driver was reloaded, and forget all offers."""
        outdated, self._outdated = self._outdated or bool(self._left_out), False
        return await super().reload() or outdated

    async def _offer(self, card: CardFacts) -> MigOffer:
        """Return the card's offer. Raises: Conflict with the reason if it has none; Unavailable."""
        product = product_type(card.name)
        allowed = next(
            (each.profiles for each in self._allowlist if any(m in product for m in each.models)),
            (),
        )
        if not allowed:
            raise Conflict(f"no models entry of migProfileAllowlist matches {product!r}")
        offer = offer_of(allowed, await self._driver.profiles(card.uuid))
        if offer is None:
            raise Conflict(f"{product} has none of the profiles {', '.join(allowed)}")
        return without_places(offer, [each for each in self._foreign if each.card == card.uuid])
