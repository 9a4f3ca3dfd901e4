"""Stop without harm: accept no new pods, and give bound pods their devices first.

On SIGTERM and SIGHUP. Input: the grants in flight. Readiness answers no from the start. The agent
serves until every pod that was bound before has its answers, or `drain_s` is over; running calls
finish after that (`registration.py`). Running pods are not affected. The scheduler asks for
readiness before it sends the grant, so the grant after a recent yes is awaited as well.
"""

from __future__ import annotations

import logging
import time

from hami_node_agent.grants.ports import NodePodApi
from hami_node_agent.grants.records import grants_in_flight
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

# Interval of checks for a record: answers wake no waiter.
_LOOK_S = 0.05
# From our yes to the grant: the delivery of both, each at most a second (the time-outs of the
# scheduler's adapters/nats.py).
GRANT_FOLLOWS_S = 2.5


class Drain:
    """State of a stop: whether it has begun, and which bound pods still need devices."""

    def __init__(self, state: NodeState, pods: NodePodApi, *, drain_s: float) -> None:
        self._state = state
        self._pods = pods
        self._drain_s = drain_s
        self.begun = False
        self._follows_until = 0.0

    def coming(self) -> list[str]:
        """Return uids of pods with a grant that have not requested all their devices."""
        found = grants_in_flight(self._state.book, self._state.saved, self._pods.snapshot())
        return [each.grant.pod_uid for each in found]

    def expect_grant(self) -> None:
        """Record that the scheduler may send a pod, whose grant will follow."""
        self._follows_until = time.monotonic() + GRANT_FOLLOWS_S

    async def drain(self) -> None:
        """Wait until no pod is being bound or still needs devices, or the time is over."""
        self.begun = True
        deadline = time.monotonic() + self._drain_s
        while self.coming() or time.monotonic() < self._follows_until:
            seen = self._state.book_changed.version
            if time.monotonic() > deadline:
                logger.warning(
                    "Stopping before all granted pods have started",
                    extra={"pod_uids": self.coming()},
                )
                return
            await self._state.book_changed.wait(seen, _LOOK_S)
