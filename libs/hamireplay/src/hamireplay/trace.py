"""Nodes and pods of a replay as plain numbers, and the cluster that takes the pods.

Cards are counted in thousandths (milli) of one card, host CPU in thousandths of a core; card memory
is in MiB, and 0 where the trace has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from hamicommon.domain.allocations import Footprint
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.vendor_policy import PairScores, VendorRules

WHOLE_CARD_MILLI = 1000

KINDS = ("no card", "share", "1 card", "2 cards", "3-4 cards", "5-8 cards", "more cards")
"""Kinds of pods, by what they ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """One node: its host and its cards, which are all of one model unless `devices` names them."""

    name: NodeName
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str
    card_memory_mib: int = 0
    """0: not known."""
    devices: tuple[GpuDevice, ...] = ()
    """The cards themselves, of a real cluster; empty: `cards` of `model`."""
    pair_scores: PairScores = field(default_factory=dict)
    """How well its cards are connected, where that is known."""


class Shape(NamedTuple):
    """All that a policy sees of a pod: it treats two pods of one shape alike."""

    cpu_milli: int
    cards: int
    card_milli: int
    """Milli of each card."""
    card_memory_mib: int
    """MiB of each card."""
    models: tuple[str, ...]
    asks: Hashable = None
    """The containers and selections of a real pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """One pod, with one container that asks for cards unless `request` has more."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    card_milli: int
    """Milli of each card; 0 with no card, or when only memory is asked for."""
    models: tuple[str, ...] = ()
    """Any of these; empty: every model."""
    card_memory_mib: int = 0
    """MiB of each card; 0: none is named."""
    arrives_s: float | None = None
    starts_s: float | None = None
    """Time of its placement; None: when it arrived."""
    ends_s: float | None = None
    """None: not before the trace ends."""
    gone_s: float | None = None
    """When a pod was gone that never got a place; None: it got one, or still waits."""
    ran: bool = True
    """False: it never got a place, so how long it would run is not known."""
    request: PodRequest | None = None
    """Request of a real pod; the numbers above then only sum it up."""

    @property
    def runs_s(self) -> float | None:
        """Seconds that it runs; infinite: it does not end; None: not known."""
        if not self.ran or self.arrives_s is None:
            return None
        if self.ends_s is None:
            return float("inf")
        return self.ends_s - (self.arrives_s if self.starts_s is None else self.starts_s)

    @property
    def shape(self) -> Shape:
        """The pod as a policy sees it."""
        asks = None
        if self.request is not None:
            asks = self.request.containers, tuple(sorted(self.request.selections.items()))
        return Shape(
            self.cpu_milli, self.cards, self.card_milli, self.card_memory_mib, self.models, asks
        )

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.cards == 0:
            return KINDS[0]
        if self.cards == 1:
            return KINDS[2] if self.card_milli == WHOLE_CARD_MILLI else KINDS[1]
        bounds = (2, 4, 8)
        return KINDS[3 + next((n for n, most in enumerate(bounds) if self.cards <= most), 3)]


class Held(NamedTuple):
    """Cards and host that a placed pod took, to give them back when it ends."""

    row: int
    """Row of its node, in the order of names."""
    taken: Sequence[Footprint] = ()
    """Amounts of the engine's cards."""
    details: Sequence[tuple[GpuUuid, Mapping[str, Any]]] = ()
    """Details that vendors keep with slices (`DeviceShare.detail`)."""
    places: tuple[int, ...] = ()
    """Numbers of the cards on the node, where a card has only one amount."""


class ReplayCluster(Protocol):
    """A trace's cluster under one policy: pods come to it, and go."""

    def take(self, pod: TracePod, row: int | None = None) -> Held | None:
        """Put the pod on a node; None when it fits nowhere.

        Args:
            pod: the pod.
            row: only this node, in the order of names: the pod waits, and has arrived before.
        """

    def give_back(self, pod: TracePod, held: Held) -> None:
        """Free the slices and the host of a pod that has ended."""

    def stranded_milli(self) -> float | None:
        """Idle cards that no usual pod could use, in milli; None: the policy does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A cluster and the pods that came to it."""

    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]
    rules: Mapping[str, VendorRules] | None = None
    """How the cards of each vendor are judged; None: all by the standard loop."""
    unread: Sequence[str] = ()
    """Columns of the files that are not read, each with its file."""

    @property
    def has_card_memory(self) -> bool:
        """Whether pods ask for memory of cards, so that a card has two amounts that can run out."""
        return any(pod.card_memory_mib or pod.request is not None for pod in self.pods)

    @property
    def cards(self) -> int:
        """Number of cards of all nodes."""
        return sum(node.cards for node in self.nodes)

    @property
    def capacity_milli(self) -> int:
        """All cards, in milli."""
        return self.cards * WHOLE_CARD_MILLI

    @property
    def card_memory_mib(self) -> int:
        """Memory of the most common card; 0 where none is known."""
        return usual_card_memory(self.nodes)


def without_a_card(trace: Trace) -> Mapping[str, int]:
    """Count the pods that name only models that no node has, by these models; all are refused.

    A name is a part of a model's, as where real pods name a type.
    """
    there = {node.model.upper() for node in trace.nodes}
    named = Counter(pod.models for pod in trace.pods if pod.models and pod.cards)
    return {
        "|".join(models): count
        for models, count in named.items()
        if not any(model.upper() in one for model in models for one in there)
    }


def demand_milli(pod: TracePod, card_memory_mib: int) -> int:
    """Part of the cluster's cards that a pod takes: the greater share of cores and memory."""
    share = pod.card_milli
    if pod.card_memory_mib and card_memory_mib:
        share = max(share, -(-pod.card_memory_mib * WHOLE_CARD_MILLI // card_memory_mib))
    return pod.cards * min(share, WHOLE_CARD_MILLI)


def usual_card_memory(nodes: Iterable[TraceNode]) -> int:
    """MiB of the most common card; 0 where none is known."""
    counts: Counter[int] = Counter()
    for node in nodes:
        if node.card_memory_mib:
            counts[node.card_memory_mib] += node.cards
    return max(counts, key=lambda mib: (counts[mib], mib), default=0)
