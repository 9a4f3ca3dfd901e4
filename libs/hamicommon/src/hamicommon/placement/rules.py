"""The fit rules: which card can take one slice of a request, and the reason when it can't.

`Ask` puts one request to a table of cards, of the whole cluster or of one node. The rules and their
order are HAMi's (protocol sheet 1.0.4); the first that fails is the card's reason. `place.py` walks
the containers of a pod over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.cards import Bools, Cards, Codes, Int, Model

MIG = "mig"


class Rule(IntEnum):
    """Why a card was refused, in the order of the rules."""

    FITS = 0
    NOT_HEALTHY = 1
    CORDONED = 2
    TYPE = 3
    UUID = 4
    NOT_OFFERED = 5
    """The caller left this card out, because another pod has just taken it."""
    SLOTS = 6
    MUTEX = 7
    MEMORY = 8
    CORES = 9
    EXCLUSIVE = 10
    CORES_EXHAUSTED = 11
    MIG_MODE = 12
    NO_CARD = 255
    """Not a card of the vendor asked for, or an empty place of the table."""


REASONS = {
    Rule.NOT_HEALTHY: "CardNotHealth",
    Rule.CORDONED: "CardCordoned",
    Rule.TYPE: "CardTypeMismatch",
    Rule.UUID: "CardUuidMismatch",
    Rule.NOT_OFFERED: "CardTakenByAnotherPod",
    Rule.SLOTS: "CardTimeSlicingExhausted",
    Rule.MUTEX: "ExclusiveDeviceAllocateConflict",
    Rule.MEMORY: "CardInsufficientMemory",
    Rule.CORES: "CardInsufficientCore",
    Rule.EXCLUSIVE: "ExclusiveDeviceAllocateConflict",
    Rule.CORES_EXHAUSTED: "CardComputeUnitsExhausted",
    Rule.MIG_MODE: "CardMigModeNotSupported",
}
"""HAMi's words (sheet 4.7), except NOT_OFFERED and MIG_MODE, which are ours."""

NUMA_NOT_FIT = "NumaNotFit"
PARTIAL = "AllocatedCardsInsufficientRequest"
NODE_INSUFFICIENT = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"

BEFORE_NUMA = (Rule.NO_CARD, Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE)
"""A card that fails one of these takes no part in the grouping by NUMA node."""


@dataclass(slots=True, kw_only=True)
class Ask:
    """One request, ready to be put to a table of cards."""

    request: DeviceRequest
    type_codes: Codes
    """By model: 0, TYPE, MIG_MODE or NO_CARD."""
    core: int
    mutex: bool
    barred: Bools | None
    """(nodes, places): cards that the uuid annotations rule out."""
    taken: Bools | None
    """(nodes, places): cards that the caller left out."""

    def take(self, rows: Int) -> Ask:
        """The same for some of the table's rows."""
        return Ask(
            request=self.request,
            type_codes=self.type_codes,
            core=self.core,
            mutex=self.mutex,
            barred=None if self.barred is None else self.barred[rows],
            taken=None if self.taken is None else self.taken[rows],
        )

    def memory_on(self, cards: Cards) -> Int | int:
        """MiB that a slice takes, per card when it is a percentage."""
        request = self.request
        if request.memory_mib > 0 or request.memory_percent is None:
            return request.memory_mib
        return cards.memory * request.memory_percent // 100

    def judge(self, cards: Cards) -> Codes:
        """(nodes, places): the Rule that each card fails first, or 0."""
        codes = np.zeros(cards.model.shape, np.uint8)
        types = self.type_codes[cards.model]
        # From the last rule to the first, so that an earlier rule overwrites a later one.
        if (self.type_codes == Rule.MIG_MODE).any():
            np.copyto(codes, Rule.MIG_MODE.value, where=types == Rule.MIG_MODE)
        if self.core == 0:
            exhausted = (cards.used_core == cards.core) & (cards.core != 0)
            np.copyto(codes, Rule.CORES_EXHAUSTED.value, where=exhausted)
        if self.core == 100:
            shared = (cards.core == 100) & (cards.used_slots > 0)
            np.copyto(codes, Rule.EXCLUSIVE.value, where=shared)
        np.copyto(codes, Rule.CORES.value, where=cards.core - cards.used_core < self.core)
        short = cards.memory - cards.used_memory < self.memory_on(cards)
        np.copyto(codes, Rule.MEMORY.value, where=short)
        if self.mutex:
            np.copyto(codes, Rule.MUTEX.value, where=cards.used_slots > 0)
        np.copyto(codes, Rule.SLOTS.value, where=cards.slots <= cards.used_slots)
        if self.taken is not None:
            np.copyto(codes, Rule.NOT_OFFERED.value, where=self.taken)
        if self.barred is not None:
            np.copyto(codes, Rule.UUID.value, where=self.barred)
        if (self.type_codes == Rule.TYPE).any():
            np.copyto(codes, Rule.TYPE.value, where=types == Rule.TYPE)
        np.copyto(codes, cards.status, where=cards.status != 0)
        np.copyto(codes, Rule.NO_CARD.value, where=types == Rule.NO_CARD)
        return codes

    def hopeless(self, cards: Cards) -> Bools:
        """(nodes, places): cards that could not take a slice even if nobody used them."""
        idle = Cards(
            **{name: getattr(cards, name) for name in cards.__slots__}
            | {
                "used_slots": np.zeros_like(cards.used_slots),
                "used_memory": np.zeros_like(cards.used_memory),
                "used_core": np.zeros_like(cards.used_core),
            }
        )
        codes = self.judge(idle)
        return ~np.isin(codes, (Rule.FITS, Rule.NOT_OFFERED))


def core_of(request: DeviceRequest) -> int:
    """Cores asked for; more than a whole card is taken as a whole card, as HAMi does."""
    return min(request.core_percent, 100)


def type_codes(models: Sequence[Model], vendor: str, selection: Selection) -> Codes:
    """By model: what the vendor and type rules say of a card."""
    return np.array([_type_code(model, vendor, selection) for model in models], np.uint8)


def _type_code(model: Model, vendor: str, selection: Selection) -> Rule:
    if model.vendor != vendor or model.vendor == "":
        return Rule.NO_CARD
    name = model.type.upper()
    if selection.use_types and not _matches(name, selection.use_types):
        return Rule.TYPE
    if _matches(name, selection.avoid_types):
        return Rule.TYPE
    if selection.mode and model.mode not in selection.mode:
        return Rule.TYPE
    return Rule.MIG_MODE if model.mode == MIG else Rule.FITS


def _matches(name: str, entries: Sequence[str]) -> bool:
    return any(entry.upper() in name for entry in entries if entry)
