"""Published policies BestFit and FGD, re-implemented for comparison. Replay only.

Formulas: hkust-adsl/kubernetes-scheduler-simulator at 8f3d641, the artefact of "Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (Weng et al.,
USENIX ATC 2023). Of equal nodes the first by name is taken, of equal cards the first; both count
one number per card.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hamicommon.errors import InvalidRequest

from hamireplay.trace import WHOLE_CARD_MILLI, HeldAmounts, Shape, Trace, TraceNode, TracePod

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_MAX_CPU_MILLI = 128_000
_MAX_CARDS_MILLI = 8_000
"""Constants of BestFit: the amounts of openb's largest node."""
_COVERED = 0.95
"""Fraction of the pods whose most common shapes FGD considers."""


@dataclass(slots=True)
class _CachedScores:
    """Scores of nodes for one shape of pod, with the versions of the nodes."""

    seen: Ints
    score: Ints
    card: Ints


class PublishedPolicy(ABC):
    """Policy on nodes in the order of names, with one amount per card.

    Changed nodes are rescored.
    """

    @classmethod
    def check(cls, trace: Trace) -> None:
        """Raise InvalidRequest if the policy can't process what the trace's pods request."""
        if trace.has_card_memory:
            raise InvalidRequest(
                "bestfit and fgd count one number per card, and the trace's pods ask for memory of "
                "cards: expected binpack, spread or fragmentation"
            )

    def __init__(self, trace: Trace, nodes: Sequence[TraceNode]) -> None:
        self.check(trace)
        nodes = sorted(nodes, key=lambda node: node.name)
        width = max(node.cards for node in nodes)
        models = sorted({node.model for node in nodes})
        self.cpu = np.array([node.cpu_milli for node in nodes])
        self.memory = np.array([node.memory_mib for node in nodes])
        self.model = np.array([models.index(node.model) for node in nodes])
        self.models = models
        self.free = np.zeros((len(nodes), width), np.int64)
        for row, node in enumerate(nodes):
            self.free[row, : node.cards] = WHOLE_CARD_MILLI
        self._version = np.ones(len(nodes), np.int64)
        self._known: dict[Hashable, _CachedScores] = {}

    def take(self, pod: TracePod, row: int | None = None) -> HeldAmounts | None:
        """Place the pod on the node with the highest score; see `ReplayCluster`."""
        among = np.arange(len(self.cpu)) if row is None else np.array([row])
        rows = among[self._feasible(pod, among)]
        if not len(rows):
            return None
        known = self._known.get(pod.shape)
        if known is None:
            empty = np.zeros((3, len(self.cpu)), np.int64)
            known = self._known[pod.shape] = _CachedScores(*empty)
        stale = rows[known.seen[rows] != self._version[rows]]
        if len(stale):
            known.score[stale], known.card[stale] = self.scores(pod, stale)
            known.seen[stale] = self._version[stale]
        best = int(rows[known.score[rows].argmax()])
        held = HeldAmounts(best, places=self._cards_of(best, pod, int(known.card[best])))
        self._count(pod, held, 1)
        return held

    def give_back(self, pod: TracePod, held: HeldAmounts) -> None:
        """Free the cards of a pod that has ended."""
        self._count(pod, held, -1)

    def stranded_milli(self) -> float | None:
        """Return None: a policy without usual pods has no such measure."""
        return None

    @abstractmethod
    def scores(self, pod: TracePod, rows: Ints) -> tuple[Ints, Ints]:
        """Score the rows, higher is better, and choose the card of a share on each."""

    def _feasible(self, pod: TracePod, rows: Ints) -> Bools:
        can: Bools = (self.cpu[rows] >= pod.cpu_milli) & (self.memory[rows] >= pod.memory_mib)
        if pod.cards:
            can &= (self.free[rows] >= pod.card_milli).sum(axis=1) >= pod.cards
            if pod.models:
                can &= self.accepts(pod.models)[self.model[rows]]
        return can

    def accepts(self, models: tuple[str, ...]) -> Bools:
        """Return by model whether a pod that names these models may use a card."""
        return np.array([not models or model in models for model in self.models])

    def _cards_of(self, row: int, pod: TracePod, card: int) -> tuple[int, ...]:
        if _is_share(pod):
            return (card,)
        return tuple(_first(self.free[row], pod).tolist()) if pod.cards else ()

    def _count(self, pod: TracePod, held: HeldAmounts, sign: int) -> None:
        self.cpu[held.row] -= sign * pod.cpu_milli
        self.memory[held.row] -= sign * pod.memory_mib
        self.free[held.row, list(held.places)] -= sign * pod.card_milli
        self._version[held.row] += 1


def _is_share(pod: TracePod) -> bool:
    return pod.cards == 1 and pod.card_milli < WHOLE_CARD_MILLI


def _first(free: Ints, pod: TracePod) -> Ints:
    """Return the first cards that fit, as many as the pod requests."""
    return np.flatnonzero(free >= pod.card_milli)[: pod.cards]


class BestFit(PublishedPolicy):
    """BestFit: least is left of the host's CPU and the node's cards.

    Shares go to the fullest card.
    """

    def scores(self, pod: TracePod, rows: Ints) -> tuple[Ints, Ints]:
        """Score by absolute leftovers, so small nodes look full."""
        free = self.free[rows]
        cpu = (self.cpu[rows] - pod.cpu_milli) / _MAX_CPU_MILLI
        cards = (free.sum(axis=1) - pod.cards * pod.card_milli) / _MAX_CARDS_MILLI
        score = np.trunc(100 * (1 - 0.5 * cpu - 0.5 * cards)).astype(np.int64)
        tight = np.where(free >= pod.card_milli, free, 2 * WHOLE_CARD_MILLI)
        return score, tight.argmin(axis=1)


class Fgd(PublishedPolicy):
    """Fragmentation gradient descent (FGD): the node whose idle cards lose least of their use.

    It knows the shapes of the whole trace beforehand (an oracle), as published.
    """

    @classmethod
    def check(cls, trace: Trace) -> None:
        """Raise InvalidRequest, also if usual pods request parts of several cards."""
        super().check(trace)
        for shape, _ in _usual(trace):
            if shape.cards > 1 and shape.card_milli < WHOLE_CARD_MILLI:
                raise InvalidRequest(
                    f"fgd: a pod asks for {shape.cards} cards of {shape.card_milli} milli: pods "
                    "with several cards take whole ones"
                )

    def __init__(self, trace: Trace, nodes: Sequence[TraceNode]) -> None:
        super().__init__(trace, nodes)
        usual = _usual(trace)
        total = sum(count for _, count in usual)
        self._cpus = np.unique([shape.cpu_milli for shape, _ in usual if shape.cards])
        width, levels = self.free.shape[1], len(self._cpus) + 1
        self._share = np.zeros((len(self.models), levels, WHOLE_CARD_MILLI // 10 + 1))
        """Part of the pods that one card with so much left could take, by model and CPU level."""
        self._whole = np.zeros((len(self.models), levels, width + 1))
        """Part of the pods that want several cards and find them, by how many are wholly free."""
        for (cpu, cards, milli, _, models, _), count in usual:
            if not cards:
                continue
            level = int(np.searchsorted(self._cpus, cpu)) + 1
            accepted = np.flatnonzero(self.accepts(models))
            if cards == 1:
                self._share[accepted, level:, milli // 10 :] += count / total
            else:
                self._whole[accepted, level:, cards:] += count / total

    def scores(self, pod: TracePod, rows: Ints) -> tuple[Ints, Ints]:
        """Score by floor(100 * sigmoid(F before - F after)), in cards."""
        model, free = self.model[rows], self.free[rows]
        before = self._fragmentation(model, self.cpu[rows], free)
        cpu = self.cpu[rows] - pod.cpu_milli
        if _is_share(pod):
            after = self._after_share(model, cpu, free, pod.card_milli)
            score = np.where(np.isnan(after), -1, _sigmoid(before[:, None] - after))
            card = score.argmax(axis=1)
            return score[np.arange(len(rows)), card].astype(np.int64), card
        if pod.cards:
            fits = free >= pod.card_milli
            taken = fits & (fits.cumsum(axis=1) <= pod.cards)
            free = free - taken * pod.card_milli
        after = self._fragmentation(model, cpu, free)
        return _sigmoid(before - after).astype(np.int64), np.zeros(len(rows), np.int64)

    def stranded_milli(self) -> float | None:
        """Return F (idle milli that usual pods can't use) of the whole cluster."""
        return float(self._fragmentation(self.model, self.cpu, self.free).sum())

    def _fragmentation(self, model: Ints, cpu: Ints, free: Ints) -> Floats:
        """Return F by row: milli of idle cards that usual pods cannot use, weighted."""
        level = np.searchsorted(self._cpus, cpu, side="right")
        usable = self._share[model[:, None], level[:, None], free // 10]
        whole = (free == WHOLE_CARD_MILLI).sum(axis=1)
        several: Floats = self._whole[model, level, whole] * whole * WHOLE_CARD_MILLI
        lost: Floats = (free * (1 - usable)).sum(axis=1) - several
        return lost

    def _after_share(self, model: Ints, cpu: Ints, free: Ints, milli: int) -> Floats:
        """Return F by row and card, with the share on that card; NaN where it does not fit."""
        level = np.searchsorted(self._cpus, cpu, side="right")[:, None]
        kind = model[:, None]
        left = np.maximum(free - milli, 0)
        now = free * (1 - self._share[kind, level, free // 10])
        then = left * (1 - self._share[kind, level, left // 10])
        idle_cards = free == WHOLE_CARD_MILLI
        whole = idle_cards.sum(axis=1)[:, None] - idle_cards
        several = self._whole[kind, level, whole] * whole * WHOLE_CARD_MILLI
        after: Floats = now.sum(axis=1)[:, None] - now + then - several
        after[free < milli] = np.nan
        return after


def _usual(trace: Trace) -> list[tuple[Shape, int]]:
    """Return the most common shapes, with the number of pods of each.

    Among equally common shapes the largest comes first, as in the artefact: which of them the cut
    leaves out is half a point of gpuspec25.
    """
    counts = Counter(pod.shape for pod in trace.pods)
    found: list[tuple[Shape, int]] = []
    for shape, count in sorted(counts.items(), key=_commonness, reverse=True):
        if sum(taken for _, taken in found) >= _COVERED * len(trace.pods):
            break
        found.append((shape, count))
    return found


def _commonness(counted: tuple[Shape, int]) -> tuple[int, int, int, int, str]:
    shape, count = counted
    return count, shape.cpu_milli, shape.card_milli, shape.cards, "|".join(shape.models)


def _sigmoid(gain: Floats) -> Floats:
    """Return a sigmoid rounded as published, 0..100: one step is about 40 milli near 50."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.floor(100 / (1 + np.exp(-gain / WHOLE_CARD_MILLI)))
