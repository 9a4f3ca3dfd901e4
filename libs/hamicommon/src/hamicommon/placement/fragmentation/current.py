"""The tables of a view as it is: made again when its mix or its kinds of cards have changed."""

from __future__ import annotations

from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.fragmentation.tables import Tables


class CurrentTables:
    """Kept in `view.memory`."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._tables: Tables | None = None

    def of(self, view: ClusterView) -> Tables:
        """Another object whenever something is different."""
        key = (view.usual.mix, *view.models)
        if self._tables is None or key != self._key:
            self._tables, self._key = Tables(view.usual.mix, view.models, view.rules), key
        return self._tables


def tables_of(view: ClusterView) -> Tables:
    """The view's current tables."""
    return view.memory.kept(CurrentTables).of(view)
