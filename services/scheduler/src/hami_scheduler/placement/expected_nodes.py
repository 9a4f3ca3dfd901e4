"""New nodes that placeholders wait for: they take no pod until the wish for them is over.

Otherwise slices might be there first, and the autoscaler would make one more node for the
placeholder (`scaling/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from cachetools import TTLCache
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json

MAX_NODES = 1000
KEPT_S = 30.0
"""By then the placeholder is on the node, and keeps slices off."""


class ExpectedNodes:
    """Nodes that are kept, by name."""

    def __init__(self) -> None:
        self._wanted: Sequence[tuple[Mapping[str, str], datetime]] = ()
        self._kept: TTLCache[NodeName, None] = TTLCache(MAX_NODES, KEPT_S)

    def expect(self, wanted: Iterable[tuple[Mapping[str, str], datetime]]) -> None:
        """Keep the nodes that come with one of these labels from now on, created since then."""
        self._wanted = tuple(wanted)
        if not self._wanted:
            self._kept.clear()

    def on_new(self, node: Json) -> None:
        """Note a node that the watch shows for the first time."""
        metadata = node["metadata"]
        labels = (metadata.get("labels") or {}).items()
        for selector, since in self._wanted:
            created_at = datetime.fromisoformat(metadata["creationTimestamp"])
            if selector.items() <= labels and created_at >= since:
                self._kept[NodeName(metadata["name"])] = None

    def let_in(self, node: NodeName) -> None:
        """Keep a node no more."""
        self._kept.pop(node, None)

    def without(self, nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """Leave out the nodes that are kept."""
        return [node for node in nodes if node not in self._kept] if self._kept else nodes
