"""Asks the scheduler for the cards that the kubelet gave in place of the granted ones.

In: a container that is about to start on other cards than the ledger has for it, the partners that
hold what it was granted, and who may take its cards in exchange. Out: the ledger's answer, before
the start; without a yes no container starts there. `prestart.py` asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from hamicommon.bus.reader import read
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.events import MoveReply, MoveRequest, WantedMove, moves_subject

from hami_node_agent.grants.ownership import Reassigned, cards_for
from hami_node_agent.grants.ports import RequestBus

# Two short transactions there; the kubelet gives the whole call 30 s.
ASK_TIMEOUT_S = 5.0


class LedgerMoves:
    """Port CardMoves."""

    def __init__(self, bus: RequestBus, *, node: str) -> None:
        self._bus = bus
        self._node = node

    async def ask(
        self, owner: Reassigned, partners: Iterable[Reassigned], exchange: Reassigned | None
    ) -> str:
        """See the port."""
        request = MoveRequest(
            node=self._node,
            owner=_wanted(owner),
            partners=tuple(map(_wanted, partners)),
            exchange=None if exchange is None else _wanted(exchange),
        )
        reply = await self._bus.request(moves_subject(self._node), request, timeout_s=ASK_TIMEOUT_S)
        try:
            return read(MoveReply, reply, "answer about other cards").refused
        except InvalidRequest as exc:
            raise Unavailable(str(exc)) from exc


def _wanted(change: Reassigned) -> WantedMove:
    return WantedMove(
        allocation_id=change.grant.allocation_id,
        token=change.grant.token,
        container=change.after.container,
        uuids=cards_for(change.granted.shares, change.after.cards),
    )
