"""The tables of a view as it is: made again when its mix or its kinds of cards have changed.

Making them takes some dozens of milliseconds, most of it a linear program. Where decisions must not
wait for that (`defer`), they go by the tables of before until somebody has made the new ones
elsewhere: the mix moves slowly, so nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hamicommon.domain.devices import GpuDevice
from hamicommon.placement.cluster.arrivals import Mix
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.fragmentation.tables import Tables
from hamicommon.placement.vendor_policy import VendorRules

_NONE = Mix((), ())
"""Of tables without prices: no view has this mix."""


class TableOrder(NamedTuple):
    """What tables are to be made of."""

    mix: Mix
    models: tuple[GpuDevice | None, ...]
    rules: Callable[[str], VendorRules]

    def made(self) -> Tables:
        """Pure: any thread may do it."""
        return Tables(self.mix, self.models, self.rules)


class CurrentTables:
    """Kept in `view.memory`."""

    def __init__(self) -> None:
        self._order: TableOrder | None = None
        self._tables: Tables | None = None
        self._deferred = False
        self.wanted: TableOrder | None = None
        """Tables that decisions would go by if somebody made and `put` them."""

    def defer(self) -> None:
        """From now on new tables are wanted, and not made by the decision that misses them."""
        self._deferred = True

    def of(self, view: ClusterView) -> Tables:
        """Another object whenever something is different."""
        if self._tables is None or not _same(self._order, view):
            order = TableOrder(view.usual.mix, tuple(view.models), view.rules)
            if self._deferred:
                return self._until_made(order)
            self._tables, self._order = order.made(), order
        return self._tables

    def put(self, order: TableOrder, tables: Tables) -> None:
        """Tables that were wanted; of no use where the kinds of cards are others by now."""
        if self._order is not None and order.models == self._order.models:
            self._tables, self._order = tables, order
        if self.wanted is order:
            self.wanted = None

    def _until_made(self, order: TableOrder) -> Tables:
        """Those of before; kinds of cards that they do not know are looked up without prices."""
        known, wanted = self._order, self.wanted
        if wanted is None or (wanted.mix, wanted.models) != (order.mix, order.models):
            self.wanted = order
        if self._tables is None or known is None or known.models != order.models:
            self._tables = Tables(order.mix, order.models, order.rules, prices=False)
            self._order = order._replace(mix=_NONE)
        return self._tables


def _same(order: TableOrder | None, view: ClusterView) -> bool:
    # A mix is another one when it is another object.
    return order is not None and order.mix is view.usual.mix and order.models == tuple(view.models)


def tables_of(view: ClusterView) -> Tables:
    """The view's current tables."""
    return view.memory.kept(CurrentTables).of(view)
