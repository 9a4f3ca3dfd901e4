"""Answers an agent that asks for all live grants of its node (start, or doubt about the bus)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hamicommon.bus.reader import read_of_node
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.events import GrantSnapshot, GrantSnapshotRequest, GrantState
from hamicommon.grants.grant import grant_of
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ports.ledger import AllocationStore

SUBJECT = "hami.grants.snapshot.*"
QUEUE = "scheduler"


@dataclass(eq=False)
class GrantSnapshots:
    """Responder of `hami.grants.snapshot.*`."""

    ledger: AllocationStore
    bulkhead: Bulkhead = field(default_factory=Bulkhead)

    async def respond(self, subject: str, body: bytes) -> GrantSnapshot:
        """The grants of the node whose subject was asked. Raises: InvalidRequest."""
        request = read_of_node(GrantSnapshotRequest, subject, body, "snapshot request")
        now = datetime.now(UTC)
        try:
            live = await self.ledger.live(NodeName(request.node))
        except Unavailable:
            return GrantSnapshot(node=request.node, complete=False, taken_at=now)
        granted = [
            allocation
            for allocation in live
            if allocation.token is not None and allocation.state is not AllocationState.RESERVED
        ]
        grants: list[GrantState] = []
        for allocation in granted:
            with self.bulkhead.item("snapshots", str(allocation.id)):
                grant = grant_of(allocation)
                grants.append(GrantState(grant=grant, state=allocation.state))
        return GrantSnapshot(
            node=request.node,
            # One that can't be shown must not count as withdrawn.
            complete=len(grants) == len(granted),
            taken_at=now,
            grants=tuple(grants),
        )
