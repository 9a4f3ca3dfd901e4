"""Grants on the bus; the connection itself is `hamicommon.bus`."""

from __future__ import annotations

from hamicommon.bus.client import Bus
from hamicommon.domain.allocations import Allocation
from hamicommon.events import GrantAnnounced, GrantWithdrawn, grants_subject
from hamicommon.grants import Grant

# A bind waits no longer for the bus: the signed annotation carries the grant as well.
PUBLISH_WAIT_S = 1.0


class NatsGrantAnnouncer:
    """Port GrantAnnouncer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def granted(self, grant: Grant) -> None:
        """See the port."""
        await self._bus.publish(
            grants_subject(grant.node),
            GrantAnnounced(grant=grant),
            message_id=f"grant-{grant.allocation_id}-{grant.token}",
            timeout_s=PUBLISH_WAIT_S,
        )

    async def withdrawn(self, allocation: Allocation, reason: str) -> None:
        """See the port."""
        token = allocation.token or 0
        await self._bus.publish(
            grants_subject(allocation.node),
            GrantWithdrawn(
                allocation_id=allocation.id,
                pod_uid=allocation.pod_uid,
                node=allocation.node,
                token=token,
                reason=reason,
            ),
            message_id=f"withdrawn-{allocation.id}-{token}",
            timeout_s=PUBLISH_WAIT_S,
        )
