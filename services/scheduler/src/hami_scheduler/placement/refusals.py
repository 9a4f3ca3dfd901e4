"""Refusals that are about more than the cards of the nodes that were asked for."""

from __future__ import annotations

from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError, QuotaConflict, Unschedulable
from hamicommon.explain.sentence import quota_sentence
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.quota import quota_short


class OverQuota(HamiError):
    """The namespace's quota refuses, whatever the node."""

    def __init__(self, conflict: QuotaConflict, vendors: Vendors) -> None:
        self.quota = quota_short(conflict, vendors)
        super().__init__(quota_sentence(self.quota))


class NoRoom(Unschedulable):
    """The one node that was asked for can't hold the pod."""

    def __init__(self, node: NodeName, reason: str) -> None:
        super().__init__({node: reason})
        self.args = (f"node {node} can't hold the pod: {reason}",)
