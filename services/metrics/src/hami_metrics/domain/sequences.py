"""Count usage reports that never arrived, by gaps in the agents' numbering.

Every report carries (node, agent_id, sequence). A late report fills its gap; a gap that stays open
for `LOST_AFTER_S` is a lost report. The first report seen of an agent sets the start: losses before
it are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

# Longer than any redelivery or an agent's own buffer takes after an outage of minutes.
LOST_AFTER_S = 600.0
# Of one agent; the oldest ones beyond that are given up.
MAX_HOLES = 10_000
# No agent loses so many: what differs by more is another numbering, and nothing was lost.
MAX_JUMP = 1_000_000


@dataclass(slots=True)
class _Agent:
    agent_id: str
    highest: int
    holes: dict[int, datetime] = field(default_factory=dict)


class SequenceBook:
    """Sequence numbers of every node's agent."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self.lost = 0
        """Reports given up so far."""

    @property
    def missing(self) -> int:
        """Return the number of expected reports that have not arrived yet."""
        return sum(len(agent.holes) for agent in self._agents.values())

    def note(self, node: str, agent_id: str, sequence: int, *, now: datetime) -> None:
        """Record an arrived report."""
        agent = self._agents.get(node)
        jumped = agent is not None and abs(sequence - agent.highest) > MAX_JUMP
        if agent is None or agent.agent_id != agent_id or jumped:
            # A new start of the agent: what the old one still owed will not come.
            self.lost += len(agent.holes) if agent else 0
            self._agents[node] = _Agent(agent_id, sequence)
            return
        if sequence <= agent.highest:
            agent.holes.pop(sequence, None)
            return
        skipped = sequence - agent.highest - 1
        newest = range(sequence - min(skipped, MAX_HOLES), sequence)
        agent.holes.update((number, now) for number in newest)
        too_many = max(0, len(agent.holes) - MAX_HOLES)
        for number in list(islice(agent.holes, too_many)):
            del agent.holes[number]
        self.lost += skipped - len(newest) + too_many
        agent.highest = sequence

    def give_up(self, *, now: datetime) -> int:
        """Count gaps older than `LOST_AFTER_S` as lost; return the number of lost reports."""
        oldest = now - timedelta(seconds=LOST_AFTER_S)
        given_up = 0
        for agent in self._agents.values():
            stale = [number for number, since in agent.holes.items() if since <= oldest]
            for number in stale:
                del agent.holes[number]
            given_up += len(stale)
        self.lost += given_up
        return given_up
