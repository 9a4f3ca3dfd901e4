"""Cache the result of fitting a pod's shape, by row until the row changes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.choice.picks import Picks
from hamicommon.placement.choice.vendor_chooser import asks_chooser
from hamicommon.placement.cluster.cache import ByRow, Latest
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit_with_places

Grants = tuple[ContainerGrant, ...]

_AMOUNTS = ("places", "memory", "core", "slots")


def shape_key(request: PodRequest) -> Hashable:
    """Return a key that is equal for pods that fit the same nodes in the same way."""
    return (
        tuple((container.role, container.requests) for container in request.containers),
        tuple(sorted(request.selections.items(), key=lambda item: item[0])),
        request.policy,
    )


class WalkedShape(ByRow):
    """Rows that fit one shape of pod, and the cards that each request takes."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.fits = np.zeros(rows, np.bool_)
        self._chosen = np.zeros(rows, np.bool_)
        """Rows where a vendor's chooser decided: its answers are not kept."""
        self._picks: tuple[Picks, ...] = ()
        """One per request; arrays are (rows, count)."""

    def keep(self, rows: Int, found: Sequence[Picks]) -> None:
        """Store what the requests take of these rows, which all fit."""
        if not self._picks:
            self._picks = tuple(_empty(picks, len(self.fits)) for picks in found)
        self._chosen[rows] = False
        for kept, picks in zip(self._picks, found, strict=True):
            for name in _AMOUNTS:
                getattr(kept, name)[rows] = getattr(picks, name)
            if picks.chosen is not None:
                self._chosen[rows] |= [answer is not None for answer in picks.chosen]

    def grants(self, row: int, request: PodRequest, view: ClusterView) -> Grants | None:
        """Return each container's grant on the row; None: it must be computed by a walk."""
        if self._chosen[row] or not self._picks:
            return None
        usages = view.usages(row)
        return tuple(
            ContainerGrant(
                index=index,
                name=container.name,
                role=container.role,
                shares=tuple(
                    share
                    for each in self._picks
                    if each.container == index
                    for share in each.shares(row, usages, view)
                ),
            )
            for index, container in enumerate(request.containers)
        )


def _empty(picks: Picks, rows: int) -> Picks:
    def zeros() -> Int:
        return np.zeros((rows, picks.places.shape[1]), np.int64)

    return Picks(
        container=picks.container,
        vendor=picks.vendor,
        places=zeros(),
        memory=zeros(),
        core=zeros(),
        slots=zeros(),
    )


_SHAPES = 64
"""Maximum number of cached shapes; one takes about 300 kB on 5000 nodes."""


class _KnownShape:
    """A shape that was requested; its results are stored from the second time on."""

    def __init__(self) -> None:
        self.before = False
        self.walked: WalkedShape | None = None


class KeptWalks:
    """Cached results for all rows of a view; stored in `view.memory`.

    Most pods of a burst have the same template, and one or two nodes change between two of them;
    only these are walked again. The policy `fragmentation` and the choosers of vendors have
    separate caches (`choice/chooser_answers.py`).
    """

    def __init__(self) -> None:
        self._known: Latest[_KnownShape] = Latest(_SHAPES)
        self._shape = (-1, -1)

    def of(self, request: PodRequest, view: ClusterView, rows: Int) -> WalkedShape | None:
        """Return the result for the pod on these rows; None: it must be computed.

        It must be computed for a new shape, because for a pod that comes once, one node's cards are
        enough; and if a vendor's chooser must be called, in Python, node by node.
        """
        if view.shape != self._shape:
            self._shape = view.shape
            self._known.clear()
        shape = shape_key(request)
        met = self._known.get(shape, _KnownShape)
        if not met.before:
            met.before = True
            return None
        if met.walked is None:
            met.walked = WalkedShape(view.room)
        return met.walked if _up_to_date(met.walked, request, view, rows) else None


def _up_to_date(known: WalkedShape, request: PodRequest, view: ClusterView, rows: Int) -> bool:
    """Compute the rows that have changed; return False if choosers must be asked of them."""
    changed = view.row_versions(rows)
    stale = known.stale(rows, changed)
    asked = rows[stale]
    if not len(asked):
        return True
    if asks_chooser(request, view, asked):
        return False
    known.fits[asked] = False
    fitting, found = fit_with_places(request, view, asked, ())
    if len(fitting):
        known.fits[fitting] = True
        known.keep(fitting, found)
    known.mark_current(asked, changed[stale])
    return True
