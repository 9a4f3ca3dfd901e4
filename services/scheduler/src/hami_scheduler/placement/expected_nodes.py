"""New nodes that take no pod until the wish for them has ended.

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
"""Time for which a node is kept, after which its placeholder keeps others off."""


class ExpectedNodes:
    """Reserved nodes by name."""

    def __init__(self) -> None:
        self._wanted: Sequence[tuple[Mapping[str, str], datetime]] = ()
        self._kept: TTLCache[NodeName, None] = TTLCache(MAX_NODES, KEPT_S)

    def expect(self, wanted: Iterable[tuple[Mapping[str, str], datetime]]) -> None:
        """Reserve new nodes that have one of these labels and were created since its time."""
        self._wanted = tuple(wanted)
        if not self._wanted:
            self._kept.clear()

    def on_new(self, node: Json) -> None:
        """Handle a node that the watch shows for the first time."""
        metadata = node["metadata"]
        labels = (metadata.get("labels") or {}).items()
        for selector, since in self._wanted:
            created_at = datetime.fromisoformat(metadata["creationTimestamp"])
            if selector.items() <= labels and created_at >= since:
                self._kept[NodeName(metadata["name"])] = None

    def let_in(self, node: NodeName) -> None:
        """Let pods use the node."""
        self._kept.pop(node, None)

    def without(self, nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        """Return the nodes that are not reserved."""
        return [node for node in nodes if node not in self._kept] if self._kept else nodes
