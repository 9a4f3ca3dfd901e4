"""Fit rules: which cards can take one slice of a request, and the reason if they can't.

`Ask` puts one request to a table of cards, of the whole cluster or of one node; `Ask.of` is the
only place that makes one. The rules and their order are the vendor's (`VendorRules`; protocol 1.0.4
for most); the first that fails is the card's reason. `filter.py` walks the containers of a pod over
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, PodRequest, Policy, Selection
from hamicommon.placement.cluster.cards import Bools, Cards, Codes, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need, VendorRules

_COMMON = frozenset({Rule.NOT_HEALTHY, Rule.CORDONED, Rule.SLOTS, Rule.MEMORY, Rule.CORES})
"""Rules of nearly every vendor, which are checked together for speed."""


@dataclass(slots=True, kw_only=True)
class Ask:
    """One request of a pod, prepared for checking a table of cards."""

    request: DeviceRequest
    selection: Selection
    policy: Policy
    cpu_milli: int
    """CPU that the whole pod requests of the host."""
    rules: VendorRules
    type_codes: Codes
    """Result of the type rule by model: FITS, TYPE or NO_CARD."""
    need: Needs
    barred: Bools | None = None
    """(nodes, places): cards that the uuid annotations exclude."""
    taken: Bools | None = None
    """(nodes, places): cards that the caller excludes."""
    elsewhere: Bools | None = None
    """(nodes, places): cards other than the one that holds the pod's earlier containers."""

    @classmethod
    def of(cls, pod: PodRequest, request: DeviceRequest, view: ClusterView) -> Ask:
        """Prepare `request` of the pod; the caller adds what depends on the rows."""
        selection, rules = pod.selection_of(request.vendor), view.rules(request.vendor)
        return cls(
            request=request,
            selection=selection,
            policy=pod.policy,
            cpu_milli=pod.host.cpu_milli,
            rules=rules,
            type_codes=type_codes(view.models, request.vendor, selection),
            need=_needs(view.models, request, selection, rules),
        )

    def take(self, rows: Int) -> Ask:
        """Return the same question for some rows of the table."""
        return replace(
            self,
            barred=None if self.barred is None else self.barred[rows],
            taken=None if self.taken is None else self.taken[rows],
            elsewhere=None if self.elsewhere is None else self.elsewhere[rows],
        )

    def fits(self, cards: Cards) -> Bools:
        """Return (nodes, places): the cards that pass all rules."""
        asked = frozenset(self._order)
        if not asked >= _COMMON:
            fitting: Bools = self.judge(cards) == Rule.FITS
            return fitting
        fits = cards.free_memory >= self.need.memory_on(cards)
        fits &= self.need.free_core_of(cards) >= self.need.core_on(cards)
        fits &= cards.free_slots >= self.need.slots_on(cards)
        fits &= cards.status == 0
        if self.type_codes[1:].any():
            fits &= self.type_codes[cards.model] == Rule.FITS
        for rule in asked - _COMMON - {Rule.TYPE}:
            failing = self._fails(rule, cards)
            if failing is not None:
                fits &= ~failing
        return fits

    def judge(self, cards: Cards) -> Codes:
        """Return (nodes, places): the first rule that each card fails, or 0."""
        codes = np.zeros(cards.model.shape, np.uint8)
        # From the last rule to the first, so that an earlier rule overwrites a later one.
        for rule in reversed(self._order):
            failing = self._fails(rule, cards)
            if failing is not None:
                np.copyto(codes, rule.value, where=failing)
        np.copyto(codes, Rule.NO_CARD.value, where=self.type_codes[cards.model] == Rule.NO_CARD)
        return codes

    def lacks(self, cards: Cards) -> npt.NDArray[np.float64]:
        """(nodes * places, 3): MiB, cores and slots that a card lacks for a slice; at most 0: none.

        Infinite where the rule that refuses the card is about something else.
        """
        memory, core, slots = np.zeros((3, *cards.model.shape))
        closed = self.type_codes[cards.model] == Rule.NO_CARD
        for rule in self._order:
            match rule:
                case Rule.MEMORY:
                    memory = self.need.memory_on(cards) - cards.free_memory
                case Rule.CORES:
                    core = np.maximum(
                        core, self.need.core_on(cards) - self.need.free_core_of(cards)
                    )
                case Rule.SLOTS:
                    slots = np.maximum(slots, self.need.slots_on(cards) - cards.free_slots)
                case _ if (failing := self._fails(rule, cards)) is None:
                    pass
                case Rule.IN_USE | Rule.MUTEX | Rule.EXCLUSIVE:
                    slots = np.where(failing, cards.slots - cards.free_slots, slots)
                case Rule.CORES_EXHAUSTED:
                    core = np.where(failing, 1, core)
                case _:
                    closed |= failing
        lacks = np.stack([memory, core, slots], axis=-1)
        lacks[closed] = np.inf
        return lacks.reshape(-1, 3)

    @property
    def _order(self) -> tuple[Rule, ...]:
        return _order_of(self.rules.order, self.rules.same_card)

    def _fails(self, rule: Rule, cards: Cards) -> Bools | None:
        """Return (nodes, places): cards that the rule refuses; None if it can refuse none."""
        match rule:
            case Rule.NOT_HEALTHY | Rule.CORDONED:
                closed: Bools = cards.status == rule
                return closed
            case Rule.TYPE:
                other: Bools = self.type_codes[cards.model] == Rule.TYPE
                return other
            case Rule.UUID:
                return self.barred
            case Rule.NOT_OFFERED:
                return self.taken
            case Rule.SLOTS:
                return cards.free_slots < self.need.slots_on(cards)
            case Rule.IN_USE:
                return cards.free_slots < cards.slots
            case Rule.MUTEX:
                return cards.free_slots < cards.slots if self.policy.mutex else None
            case Rule.MEMORY:
                return cards.free_memory < self.need.memory_on(cards)
            case Rule.CORES:
                return self.need.free_core_of(cards) < self.need.core_on(cards)
            case Rule.EXCLUSIVE:
                whole = self.need.core_is(100, cards)
                if whole is not None:
                    whole &= self.need.whole_core_of(cards) == 100
                    whole &= cards.free_slots < cards.slots
                return whole
            case Rule.CORES_EXHAUSTED:
                none = self.need.core_is(0, cards)
                if none is not None:
                    none &= self.need.whole_core_of(cards) != 0
                    none &= self.need.free_core_of(cards) == 0
                return none
            case Rule.CARD_OF_POD:
                return self.elsewhere
            case _:
                raise ValueError(f"{rule!r} is no rule about a card's kind or use")


class Needs:
    """Amounts that one slice takes of a card, by model; plain numbers if all models agree."""

    def __init__(self, by_model: Sequence[Need | None]) -> None:
        self._memory = _amounts(None if need is None else need.memory_mib for need in by_model)
        self._core = _amounts(None if need is None else need.core for need in by_model)
        self._slots = _amounts(None if need is None else need.slots for need in by_model)
        self._whole_core: Int | None = None
        if any(need is not None and need.of_core is not None for need in by_model):
            totals = (None if need is None else need.of_core for need in by_model)
            self._whole_core = np.array([-1 if t is None else t for t in totals], np.int64)

    def memory_on(self, cards: Cards) -> Int | int:
        """Return the MiB on each card."""
        return self._memory if isinstance(self._memory, int) else self._memory[cards.model]

    def core_on(self, cards: Cards) -> Int | int:
        """Return the cores on each card, in the card's unit."""
        return self._core if isinstance(self._core, int) else self._core[cards.model]

    def slots_on(self, cards: Cards) -> Int | int:
        """Return the slots on each card."""
        return self._slots if isinstance(self._slots, int) else self._slots[cards.model]

    def amounts_at(self, cards: Cards, places: Int) -> tuple[Int, Int, Int]:
        """Return (rows, count) each: MiB, cores and slots on the cards at these places."""
        memory, core, slots = (
            _full_like(places, amount)
            if isinstance(amount, int)
            else np.take_along_axis(amount, places, axis=1)
            for amount in (self.memory_on(cards), self.core_on(cards), self.slots_on(cards))
        )
        return memory, core, slots

    def whole_core_of(self, cards: Cards) -> Int:
        """Return the cores of each card as the request counts them (`Need.of_core`)."""
        if self._whole_core is None:
            return cards.core
        counted = self._whole_core[cards.model]
        return np.where(counted < 0, cards.core, counted)

    def free_core_of(self, cards: Cards) -> Int:
        """Return the free cores of each card as the request counts them."""
        if self._whole_core is None:
            return cards.free_core
        return self.whole_core_of(cards) - (cards.core - cards.free_core)

    def core_is(self, amount: int, cards: Cards) -> Bools | None:
        """Return the cards on which a slice takes exactly `amount` of cores; None: on no card."""
        if isinstance(self._core, int):
            return np.ones(cards.model.shape, np.bool_) if self._core == amount else None
        equal: Bools = self._core[cards.model] == amount
        return equal


def _full_like(like: Int, amount: int) -> Int:
    found = np.empty_like(like)
    found.fill(amount)
    return found


def _amounts(by_model: Iterable[int | None]) -> Int | int:
    amounts = tuple(by_model)
    distinct = {amount for amount in amounts if amount is not None}
    if len(distinct) <= 1:
        return next(iter(distinct), 0)
    return np.array([amount or 0 for amount in amounts], np.int64)


def _needs(
    models: Sequence[GpuDevice | None],
    request: DeviceRequest,
    selection: Selection,
    rules: VendorRules,
) -> Needs:
    """Return the result of the vendor's `need` for each of its models."""
    return Needs(
        [
            rules.need(request, selection, model)
            if model is not None and model.vendor == request.vendor
            else None
            for model in models
        ]
    )


def type_codes(models: Sequence[GpuDevice | None], vendor: str, selection: Selection) -> Codes:
    """Return the result of the vendor and type rules by model."""
    return np.array([_type_code(model, vendor, selection) for model in models], np.uint8)


def typed_as(models: Sequence[GpuDevice | None], vendor: str) -> Bools:
    """Return by model whether its type is just the vendor's name."""
    return np.array([model is not None and model.type == vendor for model in models], np.bool_)


def _type_code(model: GpuDevice | None, vendor: str, selection: Selection) -> Rule:
    if model is None or model.vendor != vendor:
        return Rule.NO_CARD
    name = model.type.upper()
    if selection.use_types and not _matches(name, selection.use_types):
        return Rule.TYPE
    if _matches(name, selection.avoid_types):
        return Rule.TYPE
    if selection.mode and model.mode not in selection.mode:
        return Rule.TYPE
    return Rule.FITS


def _matches(name: str, entries: Sequence[str]) -> bool:
    return any(entry.upper() in name for entry in entries if entry)


_ALWAYS = tuple(rule for rule in Rule if rule.row.always)


@lru_cache(maxsize=64)
def _order_of(order: tuple[Rule, ...], same_card: bool) -> tuple[Rule, ...]:
    """Return the vendor's order of rules, with those of every vendor added.

    Those about the card itself come before the vendor's first rule of use, those of use at the end.
    """
    at = next((number for number, rule in enumerate(order) if rule.row.of_use), len(order))
    return (
        *order[:at],
        *(rule for rule in _ALWAYS if not rule.row.of_use),
        *order[at:],
        *((Rule.CARD_OF_POD,) if same_card else ()),
        *(rule for rule in _ALWAYS if rule.row.of_use),
    )
