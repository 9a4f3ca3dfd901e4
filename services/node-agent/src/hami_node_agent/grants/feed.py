"""Receive grants: offers, announcements, the ledger's snapshot, and signed annotations.

Input: offers with the question for readiness (`deviceplugin/readiness.py`), the messages of
`hami.grants.v1.<node>`, and the reply of `hami.grants.snapshot.<node>`. Output: `NodeState.book`,
where `allocate.py` waits for grants. Messages arrive only while the connection is up; the snapshot,
requested on every connection after the subscription, brings the rest. A stream consumer would need
rights by which an agent could send messages to subjects of others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from operator import methodcaller
from typing import Protocol

from hamicommon import events
from hamicommon.bus.client import Handler, Message
from hamicommon.bus.reader import read, read_any
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage
from pydantic import BaseModel

from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import GrantSource, NodePodApi
from hami_node_agent.grants.records import UNANSWERED, is_complete
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

SNAPSHOT_TIMEOUT_S = 2.0
# Interval of checks for a restored connection.
CONNECTION_CHECK_S = 0.5
# After a snapshot without an answer; up to the interval, because every node asks for one.
RETRY_FIRST_S = 2.0
# A ledger that takes no report still gets it again after this many comparisons.
MAX_COMPARISONS = 32


class IncomingBus(Protocol):
    """Part of the bus that receives."""

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""

    async def request(
        self, subject: str, payload: BaseModel, *, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> bytes:
        """Send a request and return the reply's body. Raises: Unavailable."""

    @property
    def connected_for_s(self) -> float:
        """Seconds since the connection was last established; 0 while it is down."""

    async def follow(self, subjects: Sequence[str], handle: Handler) -> None:
        """Call `handle` for every new message, until cancelled."""


def node_grant(
    grant: Grant, *, state: str = AllocationState.BINDING, heard_at: float | None = None
) -> NodeGrant:
    """Convert a grant that the ledger had in `state` at the time `heard_at`."""
    return NodeGrant(
        allocation_id=AllocationId(grant.allocation_id),
        pod_uid=PodUid(grant.pod_uid),
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        token=grant.token,
        containers=grant.domain_containers(),
        state=AllocationState(state),
        traceparent=grant.traceparent,
        offered=heard_at is None or state != AllocationState.BINDING,
        answered=grant.answered,
        claimed=grant.claimed,
        slices={each.name: each.slices for each in grant.containers if each.slices},
        heard_at=time.monotonic() if heard_at is None else heard_at,
    )


async def enter_reply(state: NodeState, reply: bytes, *, pod_uid: str, node: str) -> str:
    """Add the grant of a `ClaimsReply` to the book; return why there is none, or an empty text.

    Raises: InvalidRequest when it can't be read or is another pod's, Unavailable.
    """
    answer = read(events.ClaimsReply, reply, "reply about a pod's grant")
    if answer.grant is None:
        return answer.refused
    grant = answer.grant
    if grant.pod_uid != pod_uid or grant.node != node:
        raise InvalidRequest(f"requested the grant of {pod_uid} and received {grant.pod_uid}'s")
    known = node_grant(grant)
    state.book = state.book.with_grant(known)
    await state.remember_tokens([known])
    return ""


class GrantsFeed:
    """Keep the book of one node current."""

    def __init__(
        self,
        bus: IncomingBus,
        state: NodeState,
        *,
        reports: Reports,
        node: str,
        snapshot_interval_s: float,
        bulkhead: Bulkhead | None = None,
    ) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._bus = bus
        self._state = state
        self._reports = reports
        self._lagging: dict[AllocationId, int] = {}
        """Comparisons in a row that found the ledger behind."""
        self._node = node
        self._interval_s = snapshot_interval_s
        self._offered: list[NodeGrant] = []
        """Not on disk yet."""
        self._came = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether announcements can arrive."""
        return self._bus.connected

    async def run(self) -> None:
        """Receive and compare until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            subject = events.grants_subject(self._node)
            tasks.create_task(self._bus.follow([subject], self._on_message), name="grants")
            tasks.create_task(self._compare(), name="grant-snapshots")
            tasks.create_task(self._remember_offered(), name="grants-offered")

    async def _on_message(self, message: Message) -> None:
        fact = read_any(events.GRANT_MESSAGE, message.data, "grant message")
        if isinstance(fact, events.GrantAnnounced):
            if fact.grant.node != self._node:
                raise InvalidRequest(f"grant for node {fact.grant.node} on {self._node}'s subject")
            await self._state.remember_tokens([self._add_grant(fact.grant)])
        else:
            uid = PodUid(fact.pod_uid)
            self._state.book = self._state.book.without(
                AllocationId(fact.allocation_id), uid, fact.token, heard_at=time.monotonic()
            )
            await self._state.remember_withdrawal(uid, fact.token)

    def take(self, grant: Grant) -> None:
        """Add a grant that the ledger has made for our node.

        The scheduler waits for the answer, so it is written to disk a moment later.
        """
        self._offered.append(self._add_grant(grant))
        self._came.set()

    def _add_grant(self, grant: Grant) -> NodeGrant:
        known = node_grant(grant)
        self._state.book = self._state.book.with_grant(known)
        return known

    async def _remember_offered(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            offered, self._offered = self._offered, []
            await self._state.remember_tokens(offered)

    async def _compare(self) -> None:
        """Read the snapshot after each connection, and at intervals."""
        asked_at: float | None = None
        backoff = Backoff(RETRY_FIRST_S, self._interval_s)
        outage = Outage(
            logger, failed="Retrying to get a grant snapshot", again="Received a grant snapshot"
        )
        while True:
            now, connected_for_s = time.monotonic(), self._bus.connected_for_s
            due_after_s = min(connected_for_s, self._interval_s)
            if connected_for_s and (asked_at is None or now - asked_at >= due_after_s):
                try:
                    await self.refresh()
                    await self._remind()
                    asked_at = now
                    backoff.reset()
                    outage.on_success()
                except (Unavailable, InvalidRequest) as exc:
                    outage.on_failure(exc)
                    await asyncio.sleep(backoff.next_s())
                    continue
            await asyncio.sleep(min(CONNECTION_CHECK_S, self._interval_s))

    async def refresh(self) -> bool:
        """Read all live grants of this node from the scheduler; return True if it sent them all.

        Raises: Unavailable without an answer, InvalidRequest when the answer can't be read.
        """
        asked_at = time.monotonic()
        reply = await self._bus.request(
            events.snapshot_subject(self._node),
            events.GrantSnapshotRequest(node=self._node),
            timeout_s=SNAPSHOT_TIMEOUT_S,
        )
        snapshot = read(events.GrantSnapshot, reply, "grant snapshot")
        if snapshot.node != self._node:
            raise InvalidRequest(f"grant snapshot of node {snapshot.node}, asked for {self._node}")
        grants: list[NodeGrant] = []
        for item in snapshot.grants:
            with self._bulkhead.item("grant snapshot", item.grant.allocation_id):
                grants.append(node_grant(item.grant, state=item.state, heard_at=asked_at))
        # An unreadable grant is not withdrawn by its absence.
        complete = snapshot.complete and len(grants) == len(snapshot.grants)
        self._state.book = self._state.book.reset_to(grants, complete=complete, asked_at=asked_at)
        await self._state.remember_tokens(grants)
        return complete

    async def _remind(self) -> None:
        """Repeat reports that the ledger has not applied, after 2, 4, 8, ... comparisons."""
        records = self._state.saved.records.values()
        answered = {
            grant.allocation_id: grant
            for grant in self._state.book.grants.values()
            if grant.state in UNANSWERED and is_complete(grant, records)
        }
        self._lagging = {uid: self._lagging.get(uid, 0) + 1 for uid in answered}
        for allocation_id, grant in answered.items():
            if _is_due(self._lagging[allocation_id]):
                report = self._reports.allocated_report(grant, self._state.saved)
                await self._state.change(methodcaller("with_report", report))


def _is_due(comparisons: int) -> bool:
    power_of_two = comparisons & (comparisons - 1) == 0
    return comparisons > 1 and (power_of_two or comparisons % MAX_COMPARISONS == 0)


# While the ledger can't be asked, the agent falls back to grants that the scheduler signed into
# pods' annotations. A signature proves that the grant was made once, not that it still holds: a
# user who may write annotations can restore that of an earlier attempt. So a grant with a lower
# token than one already received for its pod is ignored; the agent's state file keeps received
# tokens.


async def refresh_book(state: NodeState, source: GrantSource, pods: NodePodApi) -> bool:
    """Update the book from the ledger; grants that the ledger lacks are removed.

    False: the ledger can't be asked.

    Signed grants are read only if the ledger can't be asked: an annotation outlives its allocation,
    and a pod that was bound too late still carries it.
    """
    refreshed = await _refresh_book(source)
    if not refreshed:
        await read_signed(state, pods)
    return refreshed


async def read_signed(state: NodeState, pods: NodePodApi) -> None:
    """Add the newest signed grants to the book; unreadable ones are logged."""
    try:
        grants = await pods.signed_grants()
    except HamiError as exc:
        logger.warning("Failed to read signed grants", extra={"error": str(exc)})
        return
    least = state.saved.least_tokens
    current = [grant for grant in grants if grant.token >= least.get(grant.pod_uid, grant.token)]
    for grant in grants:
        if grant not in current:
            logger.warning(
                "Ignoring a signed grant from an earlier binding attempt",
                extra={"pod_uid": grant.pod_uid, "token": grant.token},
            )
    for grant in current:
        state.book = state.book.with_grant(grant)
    await state.remember_tokens(current)


async def _refresh_book(source: GrantSource) -> bool:
    """Return whether the book has been updated with all grants of the ledger."""
    try:
        return await source.refresh()
    except (Unavailable, InvalidRequest) as exc:
        logger.warning("Failed to get a grant snapshot", extra={"error": str(exc)})
        return False
