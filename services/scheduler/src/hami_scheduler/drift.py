"""Count, log and record differences between ledger, pods and nodes."""

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
"""Maximum lines of one report in the journal."""
MORE, MORE_DETAIL = "{} more", "the same report has more of them"


def subject_of(row: Allocation) -> str:
    """Return the name of the row's pod in the journal."""
    return f"{row.namespace}/{row.pod_name} ({row.pod_uid})"


@dataclass(eq=False)
class Drift:
    """Recorder of differences."""

    journal: PostgresJournal
    instruments: SchedulerInstruments

    async def note(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Record a difference. Raises: Unavailable; then it is not counted either."""
        await self.journal.drift(kind, subject, detail, repaired=repaired)
        self.instruments.drift.labels(kind).inc()
        message = "Repaired a difference" if repaired else "Found a difference"
        extra = {"class": kind, "subject": subject, "detail": clip(detail)}
        logger.warning(message, extra=extra)

    def count(self, kind: str) -> None:
        """Count a difference without a line."""
        self.instruments.drift.labels(kind).inc()

    def show_standing(self, kind: str, count: int) -> None:
        """Set the number of unrepaired differences of a class."""
        self.instruments.drift_items.labels(kind).set(count)


@dataclass(eq=False, kw_only=True)
class NodeProblems:
    """Present problems of one class per node; each is recorded once."""

    kind: str
    drift: Drift
    prefix: str = ""
    """Beginning of each line."""
    names_item: bool = False
    """Whether lines name the object with the problem beside its node."""
    on_count: Callable[[int], None] = lambda _count: None
    """Function that gets the number of problems of all nodes after changes."""
    by_node: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False)
    """Problems by node: object -> reason."""

    async def note(self, node: str, problems: Mapping[str, str]) -> Sequence[str]:
        """Set a node's problems; return the new lines.

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
        """Forget a deleted node."""
        self.by_node[node] = {}
        self._keep(node)

    def _keep(self, node: str) -> None:
        if not self.by_node[node]:
            del self.by_node[node]
        self.on_count(sum(map(len, self.by_node.values())))
