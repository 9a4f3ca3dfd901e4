"""Track which node-agents report, and which are silent (architecture 2.3).

In: the ledger's count of every agent's inventories, read every few seconds, and those inventories
that came to this replica. An agent was heard when its count grew, so no node's clock matters; of
one that was not heard twice nothing is known. Silence counts only while we could hear: while the
bus and the ledger were there. Else the Node object shows whether the node lives.

`extender/filter.py` offers no silent node, `extender/bind.py` reports agents that did not answer,
and the reaper asks whether the agent of a deleted pod could still report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, Unavailable

from hami_scheduler.ports.ledger import CardReader, Mark

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
# Long enough for kube-scheduler's next attempt to go elsewhere; an agent that starts is ready
# within a few seconds, and a single node must not wait longer for it.
UNANSWERED_S = 10.0


@dataclass(eq=False, kw_only=True)
class AgentLiveness:
    """State of node-agents by their reports."""

    reader: CardReader
    bus_connected_for_s: Callable[[], float]
    on_recovered: Callable[[], None]
    silent_s: float
    clock: Callable[[], float] = time.monotonic
    _marks: Mapping[NodeName, Mark] = field(default_factory=dict, init=False)
    _reported_once: set[NodeName] = field(default_factory=set, init=False)
    _reported_at: dict[NodeName, float] = field(default_factory=dict, init=False)
    """Time of each agent's last report, for agents that report repeatedly."""
    _unanswered: dict[NodeName, float] = field(default_factory=dict, init=False)
    """Time until which a node is avoided because its agent could take no pod."""
    _lives: dict[NodeName, bool | None] = field(default_factory=dict, init=False)
    """Whether each node lives, by its Node object."""
    mute: frozenset[NodeName] = field(default_factory=frozenset, init=False)
    """Nodes whose agents have not reported for `silent_s`."""
    silent: frozenset[NodeName] = field(default_factory=frozenset, init=False)
    """Nodes that get no pods, because their agents are known to be silent."""
    _seeing_since: float | None = field(default=None, init=False)
    """Time since which the ledger could be read without interruption."""

    async def once(self) -> None:
        """Compare the agents' marks with the last ones. Raises: Conflict, Unavailable.

        While they can't be read, silence means nothing, until they could be for a while.
        """
        try:
            marks = await self.reader.agent_marks()
        except (Unavailable, Conflict):
            self._seeing_since = None
            self._update()
            raise
        for node, mark in marks.items():
            if self._marks.get(node, mark) != mark:
                self.on_message(node)
        # A deleted node's agent may have been heard since, too.
        for known in (self._reported_at, self._unanswered):
            for node in known.keys() - marks.keys():
                del known[node]
        self._reported_once &= marks.keys()
        self._marks = marks
        if self._seeing_since is None:
            self._seeing_since = self.clock()
        self._update()

    def on_message(self, node: NodeName) -> None:
        """Record a report of the agent."""
        if node in self._reported_once:
            self._reported_at[node] = self.clock()
        self._reported_once.add(node)
        self._unanswered.pop(node, None)
        if node in self.silent:
            self._update()

    def node_seen(self, node: NodeName, lives: bool | None) -> None:
        """Record whether node and device plugin live by the Node object; None: unknown."""
        self._lives[node] = lives

    def node_gone(self, node: NodeName) -> None:
        """Forget a deleted node."""
        self._lives.pop(node, None)

    def on_unanswered(self, node: NodeName) -> None:
        """Avoid the node until its agent reports, because the agent took no pod."""
        self._unanswered[node] = self.clock() + UNANSWERED_S
        self._update()

    def _update(self) -> None:
        before = self.silent
        now, could_hear = self.clock(), self._could_hear()
        self._unanswered = {node: at for node, at in self._unanswered.items() if at > now}
        self.mute = frozenset(
            node
            for node, at in self._reported_at.items()
            if (now - at > self.silent_s if could_hear else self._lives.get(node) is False)
        )
        self.silent = self.mute.union(self._unanswered)
        if self.silent != before:
            logger.info(
                "Updated the list of silent node-agents", extra={"nodes": sorted(self.silent)[:20]}
            )
        if before - self.silent:
            self.on_recovered()

    def has_agent(self, node: NodeName) -> bool:
        """Return whether an agent of ours has reported the node's cards."""
        return node in self._marks or node in self._reported_once

    def speaks(self, node: NodeName) -> bool:
        """Return whether the agent reports, so that the absence of a report means no change."""
        if not self._could_hear():
            return self._lives.get(node) is True
        heard_at = self._reported_at.get(node)
        return heard_at is not None and self.clock() - heard_at <= self.silent_s

    def _could_hear(self) -> bool:
        """Return whether a working agent would have been noticed within the last `silent_s`."""
        seeing_s = 0.0 if self._seeing_since is None else self.clock() - self._seeing_since
        return min(seeing_s, self.bus_connected_for_s()) >= self.silent_s
