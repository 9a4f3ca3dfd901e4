"""Cache results per row until the row changes.

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
"""Maximum number of cached shapes per kind; one takes about 100 kB on 5000 nodes."""


class ByRow:
    """Version of each row for which a cached result holds."""

    def __init__(self, rows: int) -> None:
        self._seen = np.zeros(rows, np.int64)
        """(rows,): the row's number of change when it answered; 0: it never did."""

    def stale(self, rows: Int | slice, changed: Int) -> Bools:
        """Return the rows without a current result; `changed` are the rows' versions."""
        answer: Bools = self._seen[rows] != changed
        return answer

    def mark_current(self, rows: Int, changed: Int) -> None:
        """Record that the rows' results are current."""
        self._seen[rows] = changed

    def forget(self, rows: Int) -> None:
        """Discard the rows' results."""
        self._seen[rows] = 0


class Answers(ByRow):
    """Whether nodes take a request, by row."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.fits = np.zeros(rows, np.bool_)
        self.refusals: npt.NDArray[np.object_] = np.full(rows, None, np.object_)
        """`NotChosen` where the node does not take it."""

    def put(self, rows: Int, changed: Int, answers: list[NotChosen | None]) -> None:
        """Store the rows' newest answers; None: all take it."""
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
        """Store the amounts that vendors add."""
        self._seen[rows] = changed
        self.scores[rows] = scores


K = TypeVar("K")


class Latest(Generic[K]):
    """Cache that forgets the least recently used value above `most` values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, K] = OrderedDict()

    def get(self, key: Hashable, new: Callable[[], K]) -> K:
        """Return the value of the key, or store and return a new one."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = new()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        """Remove all values."""
        self._kept.clear()


class Memory:
    """Cached answers and scores of recently requested shapes."""

    def __init__(self) -> None:
        self._answers: Latest[Answers] = Latest(_SHAPES)
        self._scores: Latest[OwnScores] = Latest(_SHAPES)
        self._rows = 0
        self._kept: dict[type, object] = {}

    def get_or_create(self, kind: type[K]) -> K:
        """Return the view's only object of this class, created on first use."""
        found = self._kept.get(kind)
        if not isinstance(found, kind):
            found = self._kept[kind] = kind()
        return found

    def answers(self, shape: Hashable, rows: int) -> Answers:
        """Return cached answers to requests of this shape, for a view with `rows` rows."""
        self._make_room(rows)
        return self._answers.get(shape, lambda: Answers(rows))

    def scores(self, shape: Hashable, rows: int) -> OwnScores:
        """Return cached scores for pods of this shape."""
        self._make_room(rows)
        return self._scores.get(shape, lambda: OwnScores(rows))

    def _make_room(self, rows: int) -> None:
        """Clear the cache when the view has grown."""
        if rows != self._rows:
            self._answers.clear()
            self._scores.clear()
            self._rows = rows
