"""Learn the mix of usual pods: shapes of pods that arrived, counted so that old ones fade.

A shape is a pod's request for one node's cards and host; names do not matter. The counts are
exponential: an arrival weighs half as much after `HALF_LIFE` others. They depend only on arrivals,
so a restarted scheduler rebuilds them from the ledger's latest arrivals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hamicommon.domain.requests import DeviceRequest, PodRequest, Selection

Float64 = npt.NDArray[np.float64]

HALF_LIFE = 4000
"""Number of arrivals after which a count is halved.

The openb trace's mix of 35 shapes is known well after some hundreds; a fleet's workload changes
over days, in which it sees thousands.
"""
_MAX_SHAPES = 512
"""Maximum number of counted shapes; the rarest are forgotten."""
_MAX_USED = 64
"""Maximum shapes of one vendor in a mix: nearly all pods, and all shapes with several cards."""
_COVERED = 0.99
_LARGEST_WEIGHT = 1e12
_DRIFT = 0.05
"""Difference between learned mix and mix in use above which the learned one replaces it."""
_ANY = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShape:
    """A pod's request to a node, as the mix counts it."""

    request: DeviceRequest
    selection: Selection = _ANY
    cpu_milli: int = 0
    """Host CPU in thousandths of a core; 0 if unknown."""


class Mix:
    """Immutable mix: shapes with their fractions of arrivals, the most common first."""

    __slots__ = ("parts", "shapes")

    def __init__(self, shapes: Sequence[PodShape], parts: Sequence[float]) -> None:
        """`parts` are scaled to the sum 1."""
        total = sum(parts) or 1.0
        self.shapes = tuple(shapes)
        self.parts: Float64 = np.array([part / total for part in parts])

    @classmethod
    def of(cls, shapes: Iterable[PodShape]) -> Mix:
        """Return a mix of shapes that all count equally."""
        counts = ShapeCounts(half_life=None)
        for shape in shapes:
            counts.add_arrival(shape)
        return counts.mix()

    def distance(self, other: Mix) -> float:
        """Return the difference from another mix: 0 (equal) to 1 (nothing in common)."""
        mine = dict(zip(self.shapes, self.parts.tolist(), strict=True))
        theirs = dict(zip(other.shapes, other.parts.tolist(), strict=True))
        both = mine.keys() | theirs.keys()
        differences = (abs(mine.get(one, 0.0) - theirs.get(one, 0.0)) for one in both)
        return float(sum(differences)) / 2


EMPTY = Mix((), ())


class ShapeCounts:
    """Exponentially fading counts of arrivals; `half_life` None: they do not fade."""

    def __init__(self, half_life: float | None = HALF_LIFE) -> None:
        self._growth = 1.0 if half_life is None else 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._counts: dict[PodShape, float] = {}
        self.arrivals = 0
        self._vendors: set[str] = set()

    def knows(self, vendor: str) -> bool:
        """Return whether a pod of the vendor has arrived."""
        return vendor in self._vendors

    def add_arrival(self, shape: PodShape) -> None:
        """Count an arrival."""
        self._vendors.add(shape.request.vendor)
        self.arrivals += 1
        self._weight *= self._growth
        self._counts[shape] = self._counts.get(shape, 0.0) + self._weight
        if self._weight > _LARGEST_WEIGHT:
            self._counts = {key: count / self._weight for key, count in self._counts.items()}
            self._weight = 1.0
        if len(self._counts) > 2 * _MAX_SHAPES:
            self._counts = dict(self._most_common()[:_MAX_SHAPES])

    def mix(self) -> Mix:
        """Return the usual shapes: the most common ones, and all with several cards."""
        ordered = self._most_common()
        total, covered = sum(count for _, count in ordered), 0.0
        chosen: list[tuple[PodShape, float]] = []
        for shape, count in ordered:
            common = covered < _COVERED * total and len(chosen) < _MAX_USED
            if common or (shape.request.count > 1 and len(chosen) < 2 * _MAX_USED):
                chosen.append((shape, count))
            covered += count
        return Mix([shape for shape, _ in chosen], [count for _, count in chosen])

    def _most_common(self) -> list[tuple[PodShape, float]]:
        """Return shapes, the most common first; of equally common ones the first to arrive."""
        return sorted(self._counts.items(), key=lambda item: -item[1])


class UsualPods:
    """Mix that decisions use: learned from arrivals, or given and then fixed.

    It is exchanged when the counts have moved away from it by more than `_DRIFT`, because whatever
    was found out about nodes has to be found out again then.
    """

    def __init__(self) -> None:
        self.mix = EMPTY
        self._counts = ShapeCounts()
        self._given = False
        self._next_look = 1.0

    def give(self, mix: Mix) -> None:
        """Use this mix from now on, without learning."""
        self.mix, self._given = mix, True

    def add_arrival(self, shape: PodShape) -> None:
        """Count a pod of this shape, and update the mix if it has changed much."""
        vendor = shape.request.vendor
        if not self._counts.knows(vendor):
            # A pod may need a whole card: until more is known, that is the other usual pod.
            self._counts.add_arrival(PodShape(request=_whole_card(vendor)))
        self._counts.add_arrival(shape)
        if self._given or self._counts.arrivals < self._next_look:
            return
        self._next_look = self._counts.arrivals + min(self._counts.arrivals / 4, HALF_LIFE / 8)
        found = self._counts.mix()
        if found.distance(self.mix) > _DRIFT:
            self.mix = found


def _whole_card(vendor: str) -> DeviceRequest:
    return DeviceRequest(vendor=vendor, count=1, memory_percent=100, core_percent=100)


def shape_of(request: PodRequest) -> PodShape | None:
    """Return the shape of a pod by its largest request; None if it asks for no card."""
    asked = [wanted for container in request.containers for wanted in container.requests]
    if not asked:
        return None
    largest = max(asked, key=_size)
    selection = request.selection_of(largest.vendor)
    if selection.use_uuids or selection.avoid_uuids:
        # Single cards by name are no kind of demand.
        selection = replace(selection, use_uuids=(), avoid_uuids=())
    return PodShape(request=largest, selection=selection, cpu_milli=request.host.cpu_milli)


def _size(request: DeviceRequest) -> tuple[int, int, int, int]:
    return request.count, request.core_percent, request.memory_percent or 0, request.memory_mib
