"""What is kept of nodes between decisions: their states, and what each shape of pod costs there.

A row counts until it changes (`cluster/cache.py`); one change asks one row again.
"""

from __future__ import annotations

import numpy as np

from hamicommon.placement.cluster.cache import ByRow
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.fragmentation import scarce_models, whole_nodes
from hamicommon.placement.fragmentation.demand import Float64
from hamicommon.placement.fragmentation.states import States, states_of
from hamicommon.placement.fragmentation.stranded import stranded
from hamicommon.placement.fragmentation.tables import Tables
from hamicommon.placement.predicates import Ask


class KnownShape(ByRow):
    """What one shape of pod costs, by row of the view."""

    def __init__(self, rows: int, lots: int, ask: Ask | None = None) -> None:
        """`ask`: of a plain pod, which is answered from arrays."""
        super().__init__(rows)
        self.ask = ask
        self.fits = np.zeros(rows, np.bool_)
        self.cost = np.zeros(rows)
        self.lost = np.zeros((rows, lots))
        """Places for pods with several cards that the row would have less."""
        self.taken = np.zeros(rows)
        """Milli that could be granted of the row's cards, and no longer could."""
        self.places = np.zeros((rows, 0 if ask is None else ask.request.count), np.int64)


class KnownHost(ByRow):
    """What so much CPU costs, by row of the view: for pods without cards."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.cost = np.zeros(rows)


class NodesNow(ByRow):
    """The rows as they are: states, what is stranded, room for pods with several cards."""

    def __init__(self, rows: int, places: int, lots: int) -> None:
        """`places`: for cards, on each row."""
        super().__init__(rows)
        self.states = States.empty(rows, places)
        self.stranded = np.zeros(rows)
        self.unvalued = np.zeros(rows, np.bool_)
        """Rows of which `stranded` is older than the state."""
        self.places = np.zeros((rows, lots), np.int64)
        self.idle_milli = np.zeros(rows)
        self.model = np.zeros(rows, np.int64)
        self.worth = np.zeros(rows)
        """What can still be granted of the row's cards, where a model of them is scarce."""

    def refresh(self, view: ClusterView, tables: Tables) -> None:
        """Looks again at the rows that have changed."""
        every = slice(0, len(view.nodes))
        changed = view.changed(every)
        rows = np.flatnonzero(self.stale(every, changed))
        if len(rows):
            states = states_of(view.table(rows), view.free_cpu(rows))
            self.states.put(rows, states)
            self.unvalued[rows] = True
            self.places[rows] = whole_nodes.places(tables.lots, states)
            self.idle_milli[rows] = tables.idle_milli(states.core, states.memory).sum(axis=1)
            if len(tables.confined.models):
                self.model[rows] = states.model.max(axis=1)
                self.worth[rows] = scarce_models.worth(tables, states)
            self.saw(rows, changed[rows])

    def value(self, tables: Tables, rows: Int, beside: States | None = None) -> Float64:
        """What is stranded on the states `beside`, asked together with rows not valued yet."""
        rows = rows[self.unvalued[rows]]
        if not len(rows):
            return np.zeros(0) if beside is None else stranded(tables, beside)
        states = self.states.take(rows)
        found = stranded(tables, states if beside is None else states.followed_by(beside))
        self.stranded[rows], self.unvalued[rows] = found[: len(rows)], False
        return found[len(rows) :]
