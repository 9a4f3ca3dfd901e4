"""Earlier answers of nodes, kept for as long as the nodes stay as they were.

Choosers and scorers of vendors are asked in Python, node by node. Between two decisions a commit
changes a node or two, and pods come in few shapes: so the answers to a shape are kept by row of the
view, each with the number of the row's last change (`rows.Rows.changed`), and only rows that have
changed since are asked again. `choice/chooser_answers.py` keeps answers here, `score.py` scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from hamicommon.placement.cluster.cards import Bools, Floats, Int
from hamicommon.placement.vendor_policy import NotChosen

_SHAPES = 64
"""Shapes kept of each kind, the latest; on 5000 nodes one takes about 100 kB."""


class ByRow:
    """Since which change of its row an answer holds."""

    def __init__(self, rows: int) -> None:
        self._seen = np.zeros(rows, np.int64)
        """(rows,): the row's number of change when it answered; 0: it never did."""

    def stale(self, rows: Int | slice, changed: Int) -> Bools:
        """Which of the rows have to be asked; `changed` are their numbers of change now."""
        answer: Bools = self._seen[rows] != changed
        return answer

    def mark_current(self, rows: Int, changed: Int) -> None:
        """The rows have just been asked."""
        self._seen[rows] = changed

    def forget(self, rows: Int) -> None:
        """Take it that the rows never answered."""
        self._seen[rows] = 0


class Answers(ByRow):
    """Whether nodes take a request, by row."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.fits = np.zeros(rows, np.bool_)
        self.refusals: npt.NDArray[np.object_] = np.full(rows, None, np.object_)
        """`NotChosen` where the node does not take it."""

    def put(self, rows: Int, changed: Int, answers: list[NotChosen | None]) -> None:
        """The rows' newest answers; None: they take it."""
        self._seen[rows] = changed
        self.fits[rows] = [answer is None for answer in answers]
        for row, answer in zip(rows.tolist(), answers, strict=True):
            self.refusals[row] = answer


class OwnScores(ByRow):
    """Amounts that vendors add to nodes' scores for a pod, by row."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.scores: Floats = np.zeros(rows, np.float32)

    def put(self, rows: Int, changed: Int, scores: Floats) -> None:
        """Keep the amounts that they add now."""
        self._seen[rows] = changed
        self.scores[rows] = scores


K = TypeVar("K")


class Latest(Generic[K]):
    """Values by key; of more than `most` the one that was asked for longest ago goes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, K] = OrderedDict()

    def get(self, key: Hashable, new: Callable[[], K]) -> K:
        """Return the value kept under the key, or from now on a new one."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = new()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


class Memory:
    """The answers and scores of the shapes asked for last."""

    def __init__(self) -> None:
        self._answers: Latest[Answers] = Latest(_SHAPES)
        self._scores: Latest[OwnScores] = Latest(_SHAPES)
        self._rows = 0
        self._kept: dict[type, object] = {}

    def kept(self, kind: type[K]) -> K:
        """The one object of this class that lives with the view, made when first asked for."""
        found = self._kept.get(kind)
        if not isinstance(found, kind):
            found = self._kept[kind] = kind()
        return found

    def answers(self, shape: Hashable, rows: int) -> Answers:
        """Return the answers to a request of this shape, for a view with room for `rows` rows."""
        self._make_room(rows)
        return self._answers.get(shape, lambda: Answers(rows))

    def scores(self, shape: Hashable, rows: int) -> OwnScores:
        """Return the scores of a pod of this shape."""
        self._make_room(rows)
        return self._scores.get(shape, lambda: OwnScores(rows))

    def _make_room(self, rows: int) -> None:
        """Forget everything when the view has grown: that is when nodes are first met."""
        if rows != self._rows:
            self._answers.clear()
            self._scores.clear()
            self._rows = rows
