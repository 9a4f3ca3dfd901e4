"""Moves grants to the cards that the kubelet really gave, before their containers start.

In: `hami.grants.moves.<node>`, asked at PreStartContainer when the kubelet's answers went to other
containers than meant. Out: yes, once the ledger counts the container where it is, or why it can't.
The moves are guarded UPDATEs like every grant, so what starts is always counted (SAFE-1, SAFE-3); a
container that is refused does not start. Idempotent: a question that is asked again is answered yes
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hamicommon.bus.reader import read_of_node
from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid
from hamicommon.errors import (
    CapacityConflict,
    Conflict,
    InvalidRequest,
    QuotaConflict,
    Unavailable,
)
from hamicommon.events import MoveReply, MoveRequest, WantedMove
from hamicommon.ledger.cards.moves import Move
from hamicommon.ledger.model import Change

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)

SUBJECT = "hami.grants.moves.*"
QUEUE = "scheduler"
# A row that changed between our look and the transaction is looked at again.
MOST_LOOKS = 3


class GrantMoves:
    """Responder of `hami.grants.moves.*`."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        view: ClusterState,
        doubt_mirror: Callable[[PodUid], None],
        takes_any_card: Callable[[PodUid], bool],
    ) -> None:
        """`takes_any_card`: whether a pod's annotations leave it open which card it gets."""
        self._store = store
        self._view = view
        self._doubt_mirror = doubt_mirror
        self._takes_any_card = takes_any_card

    async def respond(self, subject: str, body: bytes) -> MoveReply:
        """Yes, or why not. Raises: InvalidRequest, Unavailable."""
        asked = read_of_node(MoveRequest, subject, body, "request for other cards")
        try:
            await self._carry_out(asked)
        except (Conflict, InvalidRequest) as exc:
            logger.warning(
                "container may not start on the cards it was given",
                extra={"allocation_id": asked.owner.allocation_id, "reason": str(exc)},
            )
            return MoveReply(node=asked.node, refused=str(exc))
        return MoveReply(node=asked.node)

    async def _carry_out(self, asked: MoveRequest) -> None:
        """The exchange, or all together, or else the owner alone: a partner may have no room of
        its own.

        Raises: Conflict, InvalidRequest, Unavailable.
        """
        if asked.exchange is not None and await self._exchanged(asked, asked.exchange):
            return
        try:
            await self._move(asked, (asked.owner, *asked.partners))
        except (Conflict, InvalidRequest):
            if not asked.partners:
                raise
            await self._move(asked, (asked.owner,))

    async def _exchanged(self, asked: MoveRequest, other: WantedMove) -> bool:
        """False: it is not to be, or can't be. Raises: Unavailable."""
        row = await self._store.get(AllocationId(other.allocation_id))
        if row is None or not self._takes_any_card(row.pod_uid):
            return False
        try:
            await self._move(asked, (asked.owner, other))
        except (Conflict, InvalidRequest) as exc:
            logger.info("grants not exchanged", extra={"error": str(exc)})
            return False
        return True

    async def _move(self, asked: MoveRequest, wanted: Sequence[WantedMove]) -> None:
        for _ in range(MOST_LOOKS):
            moves = [
                move
                for allocation_id, mine in _by_allocation(wanted).items()
                if (move := await self._move_of(asked.node, allocation_id, mine)) is not None
            ]
            if not moves:
                return
            try:
                changes = await self._store.move(moves)
            except (CapacityConflict, QuotaConflict):
                raise
            except Conflict as exc:
                logger.info("move lost a race", extra={"error": str(exc)})
                continue
            if changes is not None:
                self._seen(changes)
                return
        raise Unavailable(f"grant {asked.owner.allocation_id} changed {MOST_LOOKS} times since")

    async def _move_of(
        self, node: str, allocation_id: AllocationId, wanted: Iterable[WantedMove]
    ) -> Move | None:
        """None when the ledger has it so already. Raises: Conflict, InvalidRequest, Unavailable."""
        allocation = await self._store.get(allocation_id)
        if allocation is None or allocation.node != node:
            raise InvalidRequest(f"{node} has no grant {allocation_id}")
        token = allocation.token
        if not allocation.live or token is None or any(one.token != token for one in wanted):
            raise Conflict(f"grant {allocation_id} is not the pod's any more ({allocation.state})")
        containers = moved_containers(allocation, wanted)
        if containers == allocation.containers:
            return None
        return Move(allocation_id=allocation_id, token=token, containers=containers)

    def _seen(self, changes: Iterable[Change]) -> None:
        for change in changes:
            row = change.allocation
            logger.info(
                "moved to the cards that the kubelet gave",
                extra={"pod_uid": row.pod_uid, "node": row.node},
            )
            self._view.apply(change)
            # The pod's annotations follow at the next comparison; its container need not wait.
            self._doubt_mirror(row.pod_uid)


def _by_allocation(wanted: Iterable[WantedMove]) -> dict[AllocationId, list[WantedMove]]:
    found: dict[AllocationId, list[WantedMove]] = {}
    for one in wanted:
        found.setdefault(AllocationId(one.allocation_id), []).append(one)
    return found


def moved_containers(
    allocation: Allocation, wanted: Iterable[WantedMove]
) -> tuple[ContainerGrant, ...]:
    """The containers with the cards that the node names, slice by slice.

    Raises: InvalidRequest when it names other containers or another number of cards.
    """
    moved = {one.container: one.uuids for one in wanted}
    unknown = moved.keys() - {container.name for container in allocation.containers}
    if unknown:
        raise InvalidRequest(f"grant {allocation.id} has no container {', '.join(sorted(unknown))}")
    return tuple(
        container
        if container.name not in moved
        else _moved_container(container, moved[container.name])
        for container in allocation.containers
    )


def _moved_container(container: ContainerGrant, uuids: Sequence[str]) -> ContainerGrant:
    if len(uuids) != len(container.shares):
        raise InvalidRequest(
            f"container {container.name} was granted {len(container.shares)} cards, its node "
            f"names {len(uuids)}"
        )
    shares = zip(container.shares, uuids, strict=True)
    return replace(
        container, shares=tuple(replace(share, uuid=GpuUuid(uuid)) for share, uuid in shares)
    )
