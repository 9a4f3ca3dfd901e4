"""Differences between ledger, pods and nodes: counted, logged, and kept in the drift journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation

from hami_scheduler.metrics import SchedulerInstruments

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresJournal


logger = logging.getLogger(__name__)

MAX_LINES = 16
"""Lines of one report: an annotation or a node can't fill the journal."""
MORE, MORE_DETAIL = "{} more", "the same report has more of them"


def subject_of(row: Allocation) -> str:
    """Return the name that the journal has for the row's pod."""
    return f"{row.namespace}/{row.pod_name} ({row.pod_uid})"


@dataclass(eq=False)
class Drift:
    """Writes differences down."""

    journal: PostgresJournal
    instruments: SchedulerInstruments

    async def note(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Write one difference down. Raises: Unavailable; then it is not counted either."""
        await self.journal.drift(kind, subject, detail, repaired=repaired)
        self.instruments.drift.labels(kind).inc()
        message = "Repaired a difference" if repaired else "Found a difference"
        extra = {"class": kind, "subject": subject, "detail": clip(detail)}
        logger.warning(message, extra=extra)

    def count(self, kind: str) -> None:
        """Count a difference that is not worth another line."""
        self.instruments.drift.labels(kind).inc()

    def show_standing(self, kind: str, count: int) -> None:
        """Show how many differences of the class stand unrepaired."""
        self.instruments.drift_items.labels(kind).set(count)


@dataclass(eq=False, kw_only=True)
class NodeProblems:
    """Problems of one class that nodes have at present; each is written down once."""

    kind: str
    drift: Drift
    prefix: str = ""
    """Begin of each line."""
    names_item: bool = False
    """Whether the subject names what has the problem beside its node."""
    on_count: Callable[[int], None] = lambda _count: None
    """Gets the number of problems of all nodes when it may have changed."""
    by_node: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False)
    """Node -> what has the problem -> reason."""

    async def note(self, node: str, problems: Mapping[str, str]) -> Sequence[str]:
        """Take what one look at the node found; return the lines that are new.

        Raises: Unavailable.
        """
        before = self.by_node.get(node, {})
        if not problems and not before:
            return ()
        new = [(what, why) for what, why in problems.items() if before.get(what) != why]
        if len(new) > MAX_LINES:
            new = [*new[:MAX_LINES], (MORE.format(len(new) - MAX_LINES), MORE_DETAIL)]
        for what, why in new:
            subject = f"{node}/{what}" if self.names_item else node
            await self.drift.note(self.kind, subject, f"{self.prefix}{why}", repaired=False)
        self.by_node[node] = dict(problems)
        self._keep(node)
        return [f"{self.prefix}{why}" for _, why in new]

    def forget(self, node: str) -> None:
        """Drop what is known of a node that is gone."""
        self.by_node[node] = {}
        self._keep(node)

    def _keep(self, node: str) -> None:
        if not self.by_node[node]:
            del self.by_node[node]
        self.on_count(sum(map(len, self.by_node.values())))
