"""How one vendor's cards are judged, chosen and scored where that differs from the standard loop.

A vendor module (`hamicommon.vendors`) gives one `VendorRules`; the defaults are the loop of
protocol 1.0.4. What can be decided card by card is data (`order`, `need`), because the engine
asks it of the whole cluster at once; what looks at several cards of a node is a `Chooser`, which
the engine asks node by node, and only where it must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import REASONS, Rule

STANDARD_ORDER = (
    Rule.NOT_HEALTHY,
    Rule.CORDONED,
    Rule.TYPE,
    Rule.UUID,
    Rule.SLOTS,
    Rule.MUTEX,
    Rule.MEMORY,
    Rule.CORES,
    Rule.EXCLUSIVE,
    Rule.CORES_EXHAUSTED,
)
"""A card's reason is the first of these that it fails."""

PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]


class Need(NamedTuple):
    """Amounts that one slice takes of a card, in the card's own units."""

    memory_mib: int
    core: int
    of_core: int | None = None
    """The card's cores as this request counts them, in place of `GpuDevice.core_percent` in the
    rules CORES, EXCLUSIVE and CORES_EXHAUSTED (Ascend's soft slices are percent on a card that
    registers AI cores); None: what the card registers."""
    slots: int = 1
    """Slots of the card."""


def standard_need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Rules 8 and 9 of protocol 1.0.4: at most a whole card's cores.

    Memory in MiB or by percentage.

    The answer may depend on the card's kind, capacity and mode, never on its use or its identity:
    it is asked once for all cards that are alike (uuid, index, numa and health are not given).
    """
    return Need(request.memory_mib_on(card.memory_mib), min(request.core_percent, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsk:
    """One container's request, put to one node."""

    request: DeviceRequest
    selection: Selection
    policies: tuple[str, ...]
    """Card policies of the pod, such as `("spread",)` or `("binpack", "mutex")`."""
    cards: Sequence[DeviceUsage]
    """The vendor's cards as the container meets them (earlier containers' slices are on them),
    from the most to the least preferred: the order in which HAMi's loop walks."""
    rules: Sequence[Rule]
    """Per card the first rule of `VendorRules.order` that it fails, or `FITS`."""
    earlier: Sequence[DeviceShare] = ()
    """Shares that the pod's earlier containers got from this vendor on this node; none for an init
    container, which meets the node alone."""
    pairs: PairScores = field(default_factory=dict)
    """How well two of the cards are connected, higher is better; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The node takes the container: one share per slice, in the order picked."""

    shares: tuple[DeviceShare, ...]

    @classmethod
    def of(
        cls,
        ask: NodeAsk,
        cards: Iterable[GpuDevice],
        need: Callable[[DeviceRequest, Selection, GpuDevice], Need] = standard_need,
    ) -> Chosen:
        """One slice of each of the cards."""
        needs = [(card, need(ask.request, ask.selection, card)) for card in cards]
        return cls(
            shares=tuple(
                DeviceShare(
                    uuid=card.uuid,
                    vendor=ask.request.vendor,
                    memory_mib=taken.memory_mib,
                    core_percent=taken.core,
                )
                for card, taken in needs
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChosen:
    """The node does not take it. `reasons` are written `count/total Reason`, sorted, as HAMi.

    Answers are equal where HAMi's are: `refused`, `limit` and `fitting` explain them to people.
    """

    reasons: Mapping[str, int] = field(default_factory=dict)
    uncounted: str = ""
    """In place of `reasons`: one that HAMi writes without counts (`NodeInsufficientDevice`)."""
    total: int | None = None
    """Denominator; None: the number of the vendor's cards on the node."""
    refused: Mapping[GpuUuid, Rule] = field(default_factory=dict, compare=False)
    """The rule that keeps a card out, where `NodeAsk.rules` has another."""
    limit: str = field(default="", compare=False)
    """Limit that cards must meet together, as it follows `fit`: `on one NUMA node`; empty: none."""
    fitting: int = field(default=0, compare=False)
    """How many would fit within that limit."""


def tally(rules: Sequence[Rule]) -> dict[str, int]:
    """How many cards each reason keeps out, for a chooser that takes none."""
    return dict(Counter(REASONS[rule] for rule in rules if rule in REASONS))


class Chooser(Protocol):
    """Picks cards of one node where "the first that fit" is not what the vendor does."""

    def __call__(self, ask: NodeAsk) -> Chosen | NotChosen:
        """Pure and deterministic; of equal choices the first in the order of `ask.cards`."""


class NodeScorer(Protocol):
    """Amount that the vendor adds to a node's score for a placement on it (protocol 4.6 f)."""

    def __call__(
        self,
        before: Sequence[DeviceUsage],
        containers: Sequence[Sequence[DeviceShare]],
        selection: Selection,
        node_policy: str,
    ) -> float:
        """`before`: the vendor's cards of the node before the placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRules:
    """The defaults are the standard loop."""

    order: tuple[Rule, ...] = STANDARD_ORDER
    """Rules that are asked, in order; what is not in it does not apply."""
    need: Callable[[DeviceRequest, Selection, GpuDevice], Need] = standard_need
    share_type: Callable[[GpuDevice], str] = field(default=lambda card: "")
    """See `DeviceShare.type`."""
    same_card: bool = False
    """All containers of a pod must be on one card (`CardNotFoundCustomFilterRule` otherwise)."""
    reuses_card: bool = False
    """One container may get several slices of one card, so its count may exceed the cards."""
    chooser: Chooser | None = None
    chooser_rules: tuple[Rule, ...] = ()
    """Rules by which the chooser refuses cards, besides those of `order`."""
    chooser_decides: bool | Callable[[DeviceRequest, Selection], bool] = False
    """False: a node with as many fitting cards as wanted surely fits, and the chooser only picks
    which; it is asked of the best node alone. True: it is asked of every node. See `decides`."""
    applies: Callable[[DeviceRequest, Selection, Sequence[GpuDevice]], bool] = field(
        default=lambda request, selection, cards: True
    )
    """Whether the chooser is needed on a node with these cards; otherwise the first that fit.

    Asked once for all nodes whose cards are alike: uuid, index, numa and health are not given."""
    scorer: NodeScorer | None = None
    scores_alone: bool = False
    """The scorer is asked only of nodes without cards of other vendors; others score 0."""
    sound: Callable[[DeviceUsage], bool] | None = None
    """False: what is granted on the card contradicts the card's state, so nothing more is granted
    on it (it counts as unhealthy); None: it never does."""
    exact: bool = False
    """A choice holds only while the card is as it was seen (a bitmask of cores, a class of pods,
    equal partitions): the ledger then grants on that version of the card alone, because its
    counters can't show that two choices clash."""

    def can_refuse(self, rule: Rule) -> bool:
        """Whether a card of the vendor can be refused by the rule."""
        own = (*self.order, *self.chooser_rules)
        return rule in own or rule.row.always or (self.same_card and rule is Rule.CARD_OF_POD)

    def decides(self, request: DeviceRequest, selection: Selection) -> bool:
        """Whether `chooser` must be asked of every node for this request."""
        if callable(self.chooser_decides):
            return self.chooser_decides(request, selection)
        return self.chooser_decides
