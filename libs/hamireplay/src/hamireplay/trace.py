"""Data types of a replay: nodes, pods, and the cluster that takes the pods.

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
"""Kinds of pods by their request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """Node with its cards, which are of one model unless `devices` names them."""

    name: NodeName
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str
    card_memory_mib: int = 0
    """Memory of each card; 0: unknown."""
    devices: tuple[GpuDevice, ...] = ()
    """Cards of a real cluster; empty: `cards` of `model`."""
    pair_scores: PairScores = field(default_factory=dict)
    """Connection scores of the node's cards, if known."""


class Shape(NamedTuple):
    """Facts about a pod that a policy may use; pods with equal ones are treated alike."""

    cpu_milli: int
    cards: int
    card_milli: int
    """Thousandths of each card."""
    card_memory_mib: int
    """Memory of each card in MiB."""
    models: tuple[str, ...]
    asks: Hashable = None
    """Containers and selections of a real pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """Pod with one container that requests cards, unless `request` has more."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    card_milli: int
    """Thousandths of each card; 0 if no card or only memory is requested."""
    models: tuple[str, ...] = ()
    """Models of which the pod needs one; empty: any."""
    card_memory_mib: int = 0
    """MiB of each card; 0: none requested."""
    arrives_s: float | None = None
    starts_s: float | None = None
    """Time of its placement in the record; None: on arrival."""
    ends_s: float | None = None
    """Time of its end; None: not before the trace ends."""
    gone_s: float | None = None
    """Time at which a pod without a place left; None: it got a place, or still waits."""
    ran: bool = True
    """Whether the pod ever ran, so that its running time is known."""
    request: PodRequest | None = None
    """Request of a real pod, which the numbers above only summarize."""

    @property
    def runs_s(self) -> float | None:
        """Return the running time in seconds; infinite: no end; None: unknown."""
        if not self.ran or self.arrives_s is None:
            return None
        if self.ends_s is None:
            return float("inf")
        return self.ends_s - (self.arrives_s if self.starts_s is None else self.starts_s)

    @property
    def shape(self) -> Shape:
        """Return the facts about the pod that a policy may use."""
        asks = None
        if self.request is not None:
            asks = self.request.containers, tuple(sorted(self.request.selections.items()))
        return Shape(
            self.cpu_milli, self.cards, self.card_milli, self.card_memory_mib, self.models, asks
        )

    @property
    def kind(self) -> str:
        """Return the pod's kind, one of `KINDS`."""
        if self.cards == 0:
            return KINDS[0]
        if self.cards == 1:
            return KINDS[2] if self.card_milli == WHOLE_CARD_MILLI else KINDS[1]
        bounds = (2, 4, 8)
        return KINDS[3 + next((n for n, most in enumerate(bounds) if self.cards <= most), 3)]


class HeldAmounts(NamedTuple):
    """Amounts that a placed pod took, to free them when it ends."""

    row: int
    """Row of the node, in the order of names."""
    taken: Sequence[Footprint] = ()
    """Amounts of cards of the engine."""
    details: Sequence[tuple[GpuUuid, Mapping[str, Any]]] = ()
    """Details that vendors store with slices (`DeviceShare.detail`)."""
    places: tuple[int, ...] = ()
    """Numbers of the cards on the node, if a card has only one amount."""


class ReplayCluster(Protocol):
    """Cluster of a trace under one policy."""

    def take(self, pod: TracePod, row: int | None = None) -> HeldAmounts | None:
        """Place the pod on a node; return None if it fits nowhere.

        Args:
            pod: the pod.
            row: only this node, in the order of names: the pod waits, and has arrived before.
        """

    def give_back(self, pod: TracePod, held: HeldAmounts) -> None:
        """Free the cards and the host CPU of a pod that has ended."""

    def stranded_milli(self) -> float | None:
        """Return thousandths of idle cards that no usual pod could use; None: not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Cluster, and the pods that came to it."""

    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]
    rules: Mapping[str, VendorRules] | None = None
    """Rules by vendor; None: the standard rules for all."""
    unread: Sequence[str] = ()
    """Columns of the files that are not read, with the file."""

    @property
    def has_card_memory(self) -> bool:
        """Return whether pods request memory of cards, so that a card has two amounts."""
        return any(pod.card_memory_mib or pod.request is not None for pod in self.pods)

    @property
    def cards(self) -> int:
        """Return the number of cards of all nodes."""
        return sum(node.cards for node in self.nodes)

    @property
    def capacity_milli(self) -> int:
        """Return the amount of all cards in thousandths."""
        return self.cards * WHOLE_CARD_MILLI

    @property
    def card_memory_mib(self) -> int:
        """Return the memory of the most common card; 0 if unknown."""
        return usual_card_memory(self.nodes)


def without_a_card(trace: Trace) -> Mapping[str, int]:
    """Count pods whose named models no node has, by these models; all are refused.

    A name matches each model that contains it, like types that real pods name.
    """
    there = {node.model.upper() for node in trace.nodes}
    named = Counter(pod.models for pod in trace.pods if pod.models and pod.cards)
    return {
        "|".join(models): count
        for models, count in named.items()
        if not any(model.upper() in one for model in models for one in there)
    }


def demand_milli(pod: TracePod, card_memory_mib: int) -> int:
    """Return the part of the cards that a pod takes: the larger share of cores and memory."""
    share = pod.card_milli
    if pod.card_memory_mib and card_memory_mib:
        share = max(share, -(-pod.card_memory_mib * WHOLE_CARD_MILLI // card_memory_mib))
    return pod.cards * min(share, WHOLE_CARD_MILLI)


def usual_card_memory(nodes: Iterable[TraceNode]) -> int:
    """Return the MiB of the most common card; 0 if unknown."""
    counts: Counter[int] = Counter()
    for node in nodes:
        if node.card_memory_mib:
            counts[node.card_memory_mib] += node.cards
    return max(counts, key=lambda mib: (counts[mib], mib), default=0)
