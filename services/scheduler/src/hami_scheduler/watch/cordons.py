"""Entries of `hami.io/device-cordon` that close no card: named in the log, the drift journal, and
an event on the Node, once each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.k8s.annotations import DEVICE_CORDON

from hami_scheduler.ports import DriftJournal, PodEvent, PodEvents

logger = logging.getLogger(__name__)

CLASS = "cordon-without-card"
REASON = "CordonWithoutCard"
MAX_LINES = 16
"""Of one annotation; the rest is one line with their number."""


class UnmatchedCordons:
    """Entries of each node's cordon that name no card at present."""

    def __init__(self, *, journal: DriftJournal, events: PodEvents) -> None:
        self._journal = journal
        self._events = events
        self.by_node: dict[str, Mapping[str, str]] = {}
        """Node -> entry -> reason."""

    async def note(self, node: str, unmatched: Mapping[str, str]) -> None:
        """Reports the entries that are new. Raises: Unavailable."""
        before = self.by_node.get(node, {})
        new = [why for entry, why in unmatched.items() if before.get(entry) != why]
        lines = new[:MAX_LINES]
        if len(new) > MAX_LINES:
            lines.append(f"{len(new) - MAX_LINES} more entries name no card")
        for why in lines:
            await self._report(NodeName(node), f"annotation {DEVICE_CORDON}: {why}")
        if unmatched:
            self.by_node[node] = dict(unmatched)
        else:
            self.by_node.pop(node, None)

    def forget(self, node: str) -> None:
        """Drops what is known of a node that is gone."""
        self.by_node.pop(node, None)

    async def _report(self, node: NodeName, text: str) -> None:
        logger.warning("cordon without a card", extra={"node": node, "error": clip(text)})
        await self._journal.drift(CLASS, node, text, repaired=False)
        self._events.emit(
            PodEvent(
                kind="Node",
                # Events of objects without a namespace are in this one; kubelets name nodes so.
                namespace="default",
                name=node,
                uid=PodUid(node),
                reason=REASON,
                message=text,
                warning=True,
                at=datetime.now(UTC),
            )
        )
