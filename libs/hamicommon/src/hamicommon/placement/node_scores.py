"""Scores of the nodes that fit, in the order of preference, backed by arrays.

A decision on thousands of nodes needs the best few immediately (the event, the record) and all of
them later or never (explain). So names and numbers become a dict only when a reader needs more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hamicommon.domain.ids import NodeName
from hamicommon.placement.cluster.cards import Floats, Int

Float64 = npt.NDArray[np.float64]

MAX_PARTS = 20
"""Maximum number of nodes whose scores are kept in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedParts:
    """Cost of a placement under `fragmentation`: thousandths of cards that no usual pod could use.

    The node's score is minus the sum, in whole steps. Below 0: it strands less than before.
    """

    cards_milli: float
    """Thousandths stranded on the node's own cards."""
    whole_nodes_milli: float
    """Thousandths for places that pods with several cards may need."""
    scarce_models_milli: float
    """Thousandths for cards of models that some pods depend on."""


Parts = tuple[Float64, Float64, Float64]
"""`StrandedParts` of several nodes as arrays: cards, whole nodes, scarce models."""


class NodeScores(Mapping[NodeName, float]):
    """Immutable mapping of nodes to usage scores, from the least to the most preferred."""

    __slots__ = ("_by_name", "_names", "_parts", "_rows", "_values")

    def __init__(
        self,
        names: Sequence[NodeName],
        rows: Int,
        values: Floats,
        parts: Parts | None = None,
    ) -> None:
        """`names` of all rows; `rows` are those that fit, with their `values`.

        `parts` are of the last rows, which are preferred, as many as there are.
        """
        self._names = names
        self._parts = parts
        self._rows = rows
        self._values = values
        self._by_name: dict[NodeName, float] | None = None

    @classmethod
    def of(cls, scores: Mapping[NodeName, float]) -> NodeScores:
        """Make node scores from a mapping whose last node is the most preferred."""
        values = np.fromiter(scores.values(), np.float32, len(scores))
        return cls(tuple(scores), np.arange(len(scores)), values)

    @property
    def all_equal(self) -> bool:
        """Whether all scores are equal."""
        return len(self) == 0 or bool(self._values.min() == self._values.max())

    def best(self, count: int) -> list[tuple[NodeName, float]]:
        """Return the `count` most preferred nodes with their scores, the best first."""
        rows, values = self._rows[::-1][:count], self._values[::-1][:count]
        return [
            (self._names[row], score)
            for row, score in zip(rows.tolist(), values.tolist(), strict=True)
        ]

    def parts(self) -> dict[NodeName, StrandedParts]:
        """Return the parts of the best nodes' scores; empty if the scores have no parts."""
        if self._parts is None:
            return {}
        columns = [each.round(1).tolist() for each in self._parts]
        rows = self._rows[len(self._rows) - len(columns[0]) :]
        return {
            self._names[row]: StrandedParts(
                cards_milli=cards, whole_nodes_milli=whole, scarce_models_milli=scarce
            )
            for row, cards, whole, scarce in zip(rows.tolist(), *columns, strict=True)
        }

    def _all(self) -> dict[NodeName, float]:
        if self._by_name is None:
            names = map(self._names.__getitem__, self._rows.tolist())
            self._by_name = dict(zip(names, self._values.tolist(), strict=True))
        return self._by_name

    def __getitem__(self, node: NodeName) -> float:
        return self._all()[node]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"NodeScores({self._all()!r})"
