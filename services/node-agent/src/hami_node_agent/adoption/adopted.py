"""Takes up HAMi's answers to pods that the ledger has adopted, so that containers may restart.

In: grants that came after their Allocate, and the kubelet's state. Out: records marked `foreign`;
with them PreStartContainer knows the container, usage is sampled, and the pod's end is reported.
Nothing of the container is touched: HAMi's mounts and environment stay as they are.
"""

from __future__ import annotations

import logging

from hamicommon.errors import HamiError
from hamicommon.process.backoff import Backoff

from hami_node_agent.adoption.foreign_records import foreign_records
from hami_node_agent.grants.ports import KubeletState
from hami_node_agent.grants.records import is_complete
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

# While a pod with a grant is not in the kubelet's checkpoint yet.
RETRY_FIRST_S = 5.0
RETRY_LAST_S = 60.0


class AdoptedAnswers:
    """Keeps a record for each adopted container."""

    def __init__(self, state: NodeState, *, kubelet_state: KubeletState) -> None:
        self._state = state
        self._kubelet_state = kubelet_state

    async def run(self) -> None:
        """Looks at every change of the book, until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            seen = self._state.book_changed.version
            try:
                await self.take_up()
            except HamiError as exc:
                logger.warning("adopted answers not recorded, retrying", extra={"error": str(exc)})
            pause_s = backoff.failed() if self._waiting() else None
            if await self._state.book_changed.wait(seen, pause_s) != seen:
                backoff.succeeded()

    async def take_up(self) -> None:
        """Records what the kubelet shows now. Raises: Unavailable when they can't be read."""
        if not self._waiting():
            return
        holdings = await self._kubelet_state.holdings()
        found = foreign_records(self._state.book, holdings, self._state.saved.records.values())
        if found:
            await self._state.change(lambda saved: saved.with_records(found))
            for record in found:
                logger.info(
                    "adopted container recorded",
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
