"""Which nodes take a pod of one shape, and on which cards, kept while they stay as they were.

A burst is mostly pods of one template, and between two of them a node or two have changed: only
these are walked again. The policy `fragmentation` keeps its own, and so do choosers of vendors
(`choice/chooser_answers.py`).
"""

from __future__ import annotations

from hamicommon.domain.requests import PodRequest
from hamicommon.placement.choice.vendor_chooser import asks_chooser
from hamicommon.placement.cluster.cache import Latest
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.filter import fit_with_places
from hamicommon.placement.walks.walked import WalkedShape, shape_key

_SHAPES = 64
"""Shapes that are kept, the latest; on 5000 nodes one takes about 300 kB."""


class _Met:
    """A shape that came; what it found is kept from the second time on."""

    def __init__(self) -> None:
        self.before = False
        self.walked: WalkedShape | None = None


class KeptWalks:
    """The walks of a view's rows; kept in `view.memory`."""

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
