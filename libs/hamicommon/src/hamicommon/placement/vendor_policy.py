"""Interface by which vendors change how their cards are judged, chosen and scored.

A vendor module (`hamicommon.vendors`) provides one `VendorRules`; the defaults are the loop of
protocol 1.0.4. Decisions about single cards are data (`order`, `need`), because the engine applies
them to the whole cluster in one pass; a decision about several cards of a node is a `Chooser`,
which the engine calls node by node, and only if it must.
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
"""Rules in the order in which they are checked; the first that a card fails is its reason."""

PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]


class Need(NamedTuple):
    """Amounts that one slice takes of a card, in the card's own units."""

    memory_mib: int
    core: int
    of_core: int | None = None
    """Number of the card's cores as this request counts them; None: as the card registers.

    Replaces `GpuDevice.core_percent` in the rules CORES, EXCLUSIVE and CORES_EXHAUSTED: Ascend's
    soft slices are percent of a card that registers AI cores.
    """
    slots: int = 1
    """Number of slots that the slice takes."""


def standard_need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return the need by rules 8 and 9 of protocol 1.0.4: at most a whole card's cores.

    Memory in MiB or by percentage.

    The answer may depend on the card's kind, capacity and mode, never on its use or its identity:
    it is asked once for all cards that are alike (uuid, index, numa and health are not given).
    """
    return Need(request.memory_mib_on(card.memory_mib), min(request.core_percent, 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsk:
    """Question about one container's request on one node."""

    request: DeviceRequest
    selection: Selection
    policies: tuple[str, ...]
    """Card policies of the pod, such as `("spread",)` or `("binpack", "mutex")`."""
    cards: Sequence[DeviceUsage]
    """The vendor's cards with earlier containers' slices, the most preferred first, as in HAMi."""
    rules: Sequence[Rule]
    """First rule of `VendorRules.order` that each card fails, or `FITS`."""
    earlier: Sequence[DeviceShare] = ()
    """Shares of the pod's earlier containers on this node; none for an init container."""
    pairs: PairScores = field(default_factory=dict)
    """Connection scores of pairs of cards, higher is better; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Answer that the node takes the container: one share per slice, in the order picked."""

    shares: tuple[DeviceShare, ...]

    @classmethod
    def of(
        cls,
        ask: NodeAsk,
        cards: Iterable[GpuDevice],
        need: Callable[[DeviceRequest, Selection, GpuDevice], Need] = standard_need,
    ) -> Chosen:
        """Return an answer with one slice of each card."""
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
    """Answer that the node refuses the container.

    `reasons` are written `count/total Reason`, sorted, as in HAMi.

    Answers are equal where HAMi's are: `refused`, `limit` and `fitting` explain them to people.
    """

    reasons: Mapping[str, int] = field(default_factory=dict)
    uncounted: str = ""
    """Reason that HAMi writes without counts (`NodeInsufficientDevice`), in place of `reasons`."""
    total: int | None = None
    """Denominator of the counts; None: the number of the vendor's cards on the node."""
    refused: Mapping[GpuUuid, Rule] = field(default_factory=dict, compare=False)
    """Rules that refuse cards, where they differ from `NodeAsk.rules`."""
    limit: str = field(default="", compare=False)
    """Limit that cards must meet together, as text after `fit`: `on one NUMA node`; empty: none."""
    fitting: int = field(default=0, compare=False)
    """Number of cards that fit within that limit."""


def tally(rules: Sequence[Rule]) -> dict[str, int]:
    """Count the cards per reason, for a chooser that takes none."""
    return dict(Counter(REASONS[rule] for rule in rules if rule in REASONS))


class Chooser(Protocol):
    """Function that picks cards of one node, for vendors that do not take the first that fit."""

    def __call__(self, ask: NodeAsk) -> Chosen | NotChosen:
        """Answer the question. Must be pure; of equal choices take the first in `ask.cards`."""


class NodeScorer(Protocol):
    """Function that adds to a node's score for a placement on it (protocol 4.6 f)."""

    def __call__(
        self,
        before: Sequence[DeviceUsage],
        containers: Sequence[Sequence[DeviceShare]],
        selection: Selection,
        node_policy: str,
    ) -> float:
        """Return the addend; `before`: the vendor's cards of the node before the placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRules:
    """Rules of one vendor; the defaults are HAMi's standard loop."""

    order: tuple[Rule, ...] = STANDARD_ORDER
    """Rules that apply, in the order in which they are checked."""
    need: Callable[[DeviceRequest, Selection, GpuDevice], Need] = standard_need
    share_type: Callable[[GpuDevice], str] = field(default=lambda card: "")
    """Function that returns a share's type; see `DeviceShare.type`."""
    same_card: bool = False
    """Whether all containers of a pod must be on one card.

    Otherwise it is refused with `CardNotFoundCustomFilterRule`.
    """
    reuses_card: bool = False
    """Whether one container may get several slices of one card."""
    chooser: Chooser | None = None
    chooser_rules: tuple[Rule, ...] = ()
    """Rules by which the chooser refuses cards, in addition to `order`."""
    chooser_decides: bool | Callable[[DeviceRequest, Selection], bool] = False
    """Whether the chooser decides if a node fits, so that it is asked of every node.

    If not, a node with enough fitting cards fits, and the chooser only picks cards of the best
    node. See `decides`.
    """
    applies: Callable[[DeviceRequest, Selection, Sequence[GpuDevice]], bool] = field(
        default=lambda request, selection, cards: True
    )
    """Function that returns whether the chooser is needed on a node with these cards.

    Asked once for all nodes whose cards are alike: uuid, index, numa and health are not given.
    """
    scorer: NodeScorer | None = None
    scores_alone: bool = False
    """Whether the scorer is asked only of nodes without cards of other vendors; others score 0."""
    sound: Callable[[DeviceUsage], bool] | None = None
    """Function that returns False if grants contradict the card's state; None: never.

    Nothing more is granted on such a card; it counts as unhealthy.
    """
    exact: bool = False
    """Whether a choice holds only for the card's version that it was made on.

    Needed if counters can't show that two choices clash: a bitmask of cores, a class of pods, equal
    partitions.
    """

    def can_refuse(self, rule: Rule) -> bool:
        """Return whether the rule can refuse a card of the vendor."""
        own = (*self.order, *self.chooser_rules)
        return rule in own or rule.row.always or (self.same_card and rule is Rule.CARD_OF_POD)

    def decides(self, request: DeviceRequest, selection: Selection) -> bool:
        """Return whether the chooser must be asked of every node for this request."""
        if callable(self.chooser_decides):
            return self.chooser_decides(request, selection)
        return self.chooser_decides
