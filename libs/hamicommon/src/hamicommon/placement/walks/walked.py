"""Findings of a walk over a pod's containers, kept by row of the view while nothing changes."""

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
    """Return a key that is equal for pods that find the same on the same nodes."""
    return (
        tuple((container.role, container.requests) for container in request.containers),
        tuple(sorted(request.selections.items(), key=lambda item: item[0])),
        request.policy,
    )


class WalkedShape(ByRow):
    """Rows that take one shape of pod, and the cards that each of its requests would take."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.fits = np.zeros(rows, np.bool_)
        self._chosen = np.zeros(rows, np.bool_)
        """Rows where a vendor's chooser decided: its answers are not kept."""
        self._picks: tuple[Picks, ...] = ()
        """One per request; arrays are (rows, count)."""

    def keep(self, rows: Int, found: Sequence[Picks]) -> None:
        """Keep what the requests take of these rows, all of which fit."""
        if not self._picks:
            self._picks = tuple(_empty(picks, len(self.fits)) for picks in found)
        self._chosen[rows] = False
        for kept, picks in zip(self._picks, found, strict=True):
            for name in _AMOUNTS:
                getattr(kept, name)[rows] = getattr(picks, name)
            if picks.chosen is not None:
                self._chosen[rows] |= [answer is not None for answer in picks.chosen]

    def grants(self, row: int, request: PodRequest, view: ClusterView) -> Grants | None:
        """Return what every container gets on the row; None: it has to be walked."""
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
"""Shapes that are kept, the latest; on 5000 nodes one takes about 300 kB."""


class _Met:
    """A shape that came; what it found is kept from the second time on."""

    def __init__(self) -> None:
        self.before = False
        self.walked: WalkedShape | None = None


class KeptWalks:
    """The walks of a view's rows; kept in `view.memory`.

    A burst is mostly pods of one template, and between two of them a node or two have changed: only
    these are walked again. The policy `fragmentation` keeps its own, and so do choosers of vendors
    (`choice/chooser_answers.py`).
    """

    def __init__(self) -> None:
        self._known: Latest[_Met] = Latest(_SHAPES)
        self._shape = (-1, -1)

    def of(self, request: PodRequest, view: ClusterView, rows: Int) -> WalkedShape | None:
        """Return what the pod finds on these rows now; None: walk for it.

        So it is for a shape that never came: of a pod that comes once it is enough to ask one node
        which cards it takes. And where a vendor's chooser has to be asked, in Python, node by node.
        """
        if view.shape != self._shape:
            self._shape = view.shape
            self._known.clear()
        shape = shape_key(request)
        met = self._known.get(shape, _Met)
        if not met.before:
            met.before = True
            return None
        if met.walked is None:
            met.walked = WalkedShape(view.room)
        return met.walked if _up_to_date(met.walked, request, view, rows) else None


def _up_to_date(known: WalkedShape, request: PodRequest, view: ClusterView, rows: Int) -> bool:
    """Walks the rows that have changed; False where choosers have to be asked of them."""
    changed = view.changed(rows)
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
