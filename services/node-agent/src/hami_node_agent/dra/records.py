"""Records of prepared claims, kept when a grant ends and made again when the state file was lost.

Slices that other pods hold by the same claims go on as theirs when one grant ends.

The kubelet has a claim prepared once, so nobody asks again about pods that run on. In: the ledger's
first whole answer, what the kubelet has by claims (PodResources), and the device descriptions,
which name the folder of each account. Out: the records, as NodePrepareResources made them; with
them usage is sampled, limits are kept, and directories go with their pod. Until then what is
described stays (`cleanup/garbage_collection.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from hamicommon.errors import HamiError, Unavailable
from hamicommon.process.backoff import Backoff

from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.records import AgentState, Record, passed_on
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_LAST_S = 1.0, 60.0


class LostRecords:
    """Looks once, when the agent has started."""

    def __init__(self, node: NodePorts, slices: DescribedSlices) -> None:
        self._state = node.state
        self._kubelet_state = node.kubelet_state
        self._pods = node.pods
        self._slices = slices

    async def run(self) -> None:
        """Until what this start found is recorded."""
        while not self._state.book.whole:
            await self._state.book_changed.wait(self._state.book_changed.version)
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            try:
                await self.take_up()
            except HamiError as exc:
                logger.warning("claims' records not found, retrying", extra={"error": str(exc)})
                await asyncio.sleep(backoff.failed())
            else:
                return

    async def take_up(self) -> None:
        """Records what pods have by claims. Raises: Unavailable."""
        if not any(self._missing()):
            return
        held = await self._kubelet_state.claimed()
        # Prepared before the kubelet was asked: recorded by now, if by us.
        for nonce, grant, container in list(self._missing()):
            if nonce in held:
                await self._record(nonce, grant, container)

    def _missing(self) -> Iterator[tuple[str, NodeGrant, str]]:
        """(Nonce, grant, container) of all that is had by claims without a record."""
        for nonce, grant, container in self._state.book.slices():
            known = nonce in self._state.saved.records
            if not known and grant.container(container) is not None:
                yield nonce, grant, container

    async def _record(self, nonce: str, grant: NodeGrant, container: str) -> None:
        granted = grant.container(container)
        assert granted is not None
        env = await self._pods.container_env(grant, container)
        fresh = self._slices.record(nonce, frozenset(), grant, granted, env)
        record = await asyncio.to_thread(self._slices.in_place, fresh)
        if record is None:
            # After a reboot: the kubelet has it prepared before anything starts.
            return

        def edit(saved: AgentState) -> AgentState:
            known: Record | None = saved.records.get(nonce)
            return saved if known else self._slices.recorded(saved, grant, record)

        await self._state.change(edit, first=lambda: self._slices.put(record, env))
        logger.warning(
            "record of a prepared claim was lost, made again",
            extra={"pod_uid": grant.pod_uid, "container": container, "cards": list(record.cards)},
        )


async def keep_passed_on(state: NodeState) -> None:
    """Passes records on when grants end, until cancelled."""
    backoff = Backoff(0.5, 30.0)
    while True:
        seen, wait_s = state.book_changed.version, None
        try:
            await state.change(lambda saved: passed_on(saved, state.book))
            backoff.succeeded()
        except Unavailable as exc:
            wait_s = backoff.failed()
            logger.warning("records not passed on, retrying", extra={"error": str(exc)})
        await state.book_changed.wait(seen, wait_s)
