"""Finds the grant that an Allocate call means: in flight, then asked for, then signed.

In: the ids of one container. Out: a `Candidate`, or an earlier `Record` when the call is a
repetition. Each source is tried only when those before it had nothing, and each has its time-out.
The signed annotation counts only while the ledger can't be asked: it outlives its allocation, and
a pod that was bound too late still carries it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import NotFound, Unavailable

from hami_node_agent.allocation.node_ports import NodePorts
from hami_node_agent.allocation.seats import seated
from hami_node_agent.grants.candidates import Candidate, candidates, repeated
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ownership import record_of
from hami_node_agent.grants.records import Record
from hami_node_agent.grants.signed import read_signed, refresh_book

logger = logging.getLogger(__name__)


class GrantFinder:
    """Looks in all places where a grant may be."""

    def __init__(self, node: NodePorts, *, node_name: str, wait_s: float) -> None:
        """`wait_s`: how long an announcement may take to come."""
        self._state = node.state
        self._source = node.source
        self._pods = node.pods
        self._kubelet_state = node.kubelet_state
        self._node = node_name
        self._wait_s = wait_s

    def in_flight(self, count: int, planned: Mapping[str, Record]) -> Candidate | None:
        """The likeliest container that waits for `count` ids, `planned` answers counted in."""
        records = {**self._state.saved.records, **planned}
        found = candidates(self._state.book, records.values(), count, self._pods.seen())
        return found[0] if found else None

    async def find(self, ids: frozenset[str], planned: Mapping[str, Record]) -> Candidate | Record:
        """The grant for these ids, or the earlier answer that is asked for again.

        Raises: NotFound when no source knows a grant.
        """
        if not self._source.connected:
            # What the bus last announced may be an attempt that failed since; the annotation is of
            # the attempt that was bound.
            await read_signed(self._state, self._pods)
        candidate = self.in_flight(len(ids), planned)
        again = repeated({**self._state.saved.records, **planned}.values(), ids, candidate)
        if again is None:
            again = await self._answer_again(ids, candidate)
        elif await self._taken(again):
            again = None
        if again is not None:
            return again
        if candidate is None:
            await self._announced(len(ids), planned)
            candidate = self.in_flight(len(ids), planned)
        if candidate is None:
            await refresh_book(self._state, self._source, self._pods)
            candidate = self.in_flight(len(ids), planned)
        if candidate is None:
            raise NotFound(self._nothing(len(ids)))
        return await self._seated(candidate, planned)

    async def _seated(self, candidate: Candidate, planned: Mapping[str, Record]) -> Candidate:
        """The candidate, with the card that is left for it where its own is another's by now."""

        def seat() -> Candidate:
            records = {**self._state.saved.records, **planned}
            return seated(candidate, self._state.book, records.values())

        if seat() is candidate:
            return candidate
        # The others may have been moved since the book was read.
        async with self._state.moving:
            fresh = await refresh_book(self._state, self._source, self._pods)
            return seat() if fresh else candidate

    async def _taken(self, record: Record) -> bool:
        """Whether the kubelet keeps that answer for another container than was meant, or may do.

        A kubelet that was killed between an answer and its checkpoint asks twice for an init
        container, and we take the second call for the next container's; the ids go on to that one,
        whose own call is then a new one. In doubt it is new: PreStart repairs a new answer that
        should have been the old one, but not one directory in the hands of two containers.
        """
        try:
            holdings = await self._kubelet_state.holdings()
        except Unavailable as exc:
            logger.warning(
                "kubelet's checkpoint and PodResources unavailable", extra={"error": str(exc)}
            )
            return True
        return any(
            record_of(holding, (record,)) is record
            and not record.belongs_to(holding.pod_uid, holding.container)
            for holding in holdings
        )

    async def _answer_again(
        self, ids: frozenset[str], candidate: Candidate | None
    ) -> Record | None:
        """With nobody waiting: is the container that has these ids asking again, or was an answer
        of ours taken by another pod, so that its rightful owner waits still?"""
        if candidate is not None:
            return None
        try:
            holdings = await self._kubelet_state.holdings()
        except Unavailable as exc:
            logger.warning(
                "kubelet's checkpoint and PodResources unavailable", extra={"error": str(exc)}
            )
            return None
        records = tuple(self._state.saved.records.values())
        lost = self._never_stored(ids, records, holdings)
        if lost is not None:
            return lost
        for holding in holdings:
            record = record_of(holding, records)
            if record is None or record.nonce not in self._state.saved.records:
                continue
            if record.belongs_to(holding.pod_uid, holding.container):
                if holding.device_ids == ids and holding.pod_uid not in self._pods.seen().ended:
                    return record
            elif not (record.provisional or record.counts_for(holding.pod_uid, holding.container)):
                await self._give_up(record, holding)
        await self._forget_untaken(holdings)
        return None

    def _never_stored(
        self, ids: frozenset[str], records: Sequence[Record], holdings: Sequence[Holding]
    ) -> Record | None:
        """Our answer for exactly these ids that a killed kubelet did not write down.

        It comes before the answers in the checkpoint: an init container's ids go on to the next
        one, and two containers must not be given one directory.
        """
        if any(holding.answer is None for holding in holdings):
            return None
        stored = {holding.answer.nonce for holding in holdings if holding.answer is not None}
        return next(
            (
                record
                for record in records
                if record.device_ids == ids
                and record.nonce not in stored
                and record.allocation_id
                and record.pod_uid not in self._pods.seen().ended
                and self._state.book.of(record.pod_uid) is not None
            ),
            None,
        )

    async def _forget_untaken(self, holdings: Sequence[Holding]) -> None:
        """Answers kept for whom they were not meant, that a killed kubelet did not write down.

        The kubelet writes its checkpoint before its next call: nobody has them, and those they
        were kept for wait still.
        """
        if any(holding.answer is None for holding in holdings):
            return
        stored = {holding.answer.nonce for holding in holdings if holding.answer is not None}
        untaken = [
            record.nonce
            for record in self._state.saved.records.values()
            if record.pod_uid and not record.allocation_id and record.nonce not in stored
        ]
        if untaken:
            logger.warning("answers that no container took", extra={"nonces": untaken})
            await self._state.change(lambda saved: saved.without_records(untaken))

    async def _give_up(self, record: Record, holding: Holding) -> None:
        taker = self._pods.name_of(holding.pod_uid)
        grant = self._state.book.of(holding.pod_uid)
        if taker is None and grant is not None:
            taker = PodRef(uid=grant.pod_uid, namespace=grant.namespace, name=grant.pod_name)
        lost = record.lost_to(
            holding.pod_uid,
            holding.container,
            namespace=taker.namespace if taker else holding.namespace,
            pod_name=taker.name if taker else holding.pod_name,
        )
        logger.warning(
            "an answer was taken by another container",
            extra={"meant_for": record.pod_uid, "taken_by": holding.pod_uid},
        )
        await self._state.change(lambda saved: saved.with_records([lost]))

    async def _announced(self, count: int, planned: Mapping[str, Record]) -> None:
        """Waits for an announcement, while one can come."""
        deadline = time.monotonic() + self._wait_s
        while self._source.connected:
            seen = self._state.book_changed.version
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self.in_flight(count, planned) is not None:
                return
            await self._state.book_changed.wait(seen, left_s)

    def _nothing(self, count: int) -> str:
        bus = "connected" if self._source.connected else "away"
        return (
            f"no grant on node {self._node} for a container with {count} device(s) (bus {bus}): "
            "a pod gets devices here only through HAMi's scheduler; set spec.schedulerName to it, "
            "leave spec.nodeName empty, and make the pod again"
        )
