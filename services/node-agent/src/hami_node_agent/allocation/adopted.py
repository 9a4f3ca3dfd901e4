"""Takes up HAMi's answers to pods that the ledger has adopted, so that containers may restart.

In: grants that came after their Allocate, and the kubelet's books. Out: records marked `foreign`;
with them PreStartContainer knows the container, usage is sampled, and the pod's end is reported.
Nothing of the container is touched: HAMi's mounts and environment stay as they are.
"""

from __future__ import annotations

import logging

from hamicommon.errors import HamiError

from hami_node_agent.grants.ownership import foreign_records
from hami_node_agent.grants.ports import KubeletState
from hami_node_agent.grants.records import is_complete
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

RETRY_S = 5.0


class AdoptedAnswers:
    """Keeps a record for each adopted container."""

    def __init__(self, state: NodeState, *, books: KubeletState) -> None:
        self._state = state
        self._books = books

    async def run(self) -> None:
        """Looks at every change of the book, until cancelled."""
        while True:
            seen = self._state.book_changed.version
            try:
                await self.take_up()
            except HamiError as exc:
                logger.warning("adopted answers not taken up", extra={"error": str(exc)})
            waits = RETRY_S if self._waiting() else None
            await self._state.book_changed.wait(seen, waits)

    async def take_up(self) -> None:
        """Records what the books show now. Raises: Unavailable when they can't be read."""
        if not self._waiting():
            return
        holdings = await self._books.holdings()
        found = foreign_records(self._state.book, holdings, self._state.saved.records.values())
        if found:
            await self._state.change(lambda saved: saved.with_records(found))
            for record in found:
                logger.info(
                    "adopted",
                    extra={
                        "pod_uid": record.pod_uid,
                        "container": record.container,
                        "cards": list(record.cards),
                    },
                )

    def _waiting(self) -> bool:
        """Is there a grant without all its records?"""
        records = self._state.saved.records.values()
        return any(
            grant.answered and not is_complete(grant, records)
            for grant in self._state.book.grants.values()
        )
