"""Which marks of HAMi's a pod gets besides its annotations: the label, and the Normal events.

They cost the API server three writes per pod. Our own parts read neither: the pod's history and
`explain` have what the events would. HAMi's monitor selects its pods by the label, so pods on nodes
without our agent have both; everywhere else the settings decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation, Origin
from hamicommon.k8s.annotations import node_label


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMarks:
    """The settings `events` and `label`."""

    all_events: bool = False
    all_labels: bool = False

    def shows_success(self, allocation: Allocation | None) -> bool:
        """Whether a Normal event is shown; None: the pod asks for no card."""
        return self.all_events or (allocation is not None and not allocation.has_agent)

    def labels(self, allocation: Allocation) -> dict[str, str]:
        """What the pod is to be labelled with; HAMi's own pods are as its version labelled them."""
        if allocation.origin is Origin.ADOPTED:
            return {}
        if not self.all_labels and allocation.has_agent:
            return {}
        return node_label(allocation.node)
