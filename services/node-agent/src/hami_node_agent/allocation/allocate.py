"""Answer Allocate on nodes without late binding, with the one grant in flight.

The kubelet does not name the pod, but the scheduler allows one pod at a time between its binding
and its answer (the node lock). So the grant in flight is the answer, and PreStartContainer checks
which container got it (`prestart.py`). In this order: limits and cache directory on disk, the
record in a durable write, and only then the answer. A later call repairs whatever a kill between
two of these leaves. The pod is reported as allocated, which releases the lock, when the kubelet
shows that it has its answers: while another pod has them it must not take the next one's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from uuid import uuid4

from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import HamiError, NotFound, Unavailable

from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts, allocate_span
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.devices.replica_ids import preferred_ids
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import read_signed, refresh_book
from hami_node_agent.grants.records import AgentState, InFlight, Record, find_in_flight, is_complete
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)


CONFIRM_TIMEOUT_S = 3.0
"""Maximum wait for the kubelet to store an answer; then the pod is reported anyway."""
_CONFIRM_POLL_S = 0.02


class _OutdatedGrant(Exception):
    """Error: another call has answered the container since its grant was found."""


class Allocate:
    """Answer Allocate and GetPreferredAllocation."""

    def __init__(
        self,
        node: NodePorts,
        *,
        slices: DescribedSlices,
        node_name: str,
        mig: MigInstances | None = None,
    ) -> None:
        self._state = node.state
        self._pods = node.pods
        self._source = node.source
        self._kubelet_state = node.kubelet_state
        self._reports = node.reports
        self._slices = slices
        self._node_name = node_name
        self._mig = mig
        self._confirming: set[asyncio.Task[None]] = set()

    def prefer(
        self, *, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return ids on the cards of the grant in flight; empty if there is none."""
        found = self._in_flight(size)
        if found is None:
            return ()
        cards = [GpuUuid(share.uuid) for share in found.container.shares]
        return preferred_ids(cards, available=available, must_include=must_include, size=size)

    async def allocate(self, requests: Sequence[frozenset[str]]) -> list[ContainerSpec]:
        """Answer for these containers, in order.

        Raises: NotFound when no grant is in flight, Unavailable when the node can't be written.
        """
        return [await self._allocate_one(ids) for ids in requests]

    async def _allocate_one(self, ids: frozenset[str]) -> ContainerSpec:
        while True:
            found = await self._find(ids)
            repeated = await self._find_repeated(ids, found)
            if repeated is not None:
                return await self._answer_again(repeated)
            if found is None:
                message = self._describe_missing(len(ids))
                await self._warn_unscheduled(len(ids), message)
                raise NotFound(message)
            with suppress(_OutdatedGrant):
                return await self._answer(found, ids)

    # Which grant

    def _in_flight(self, count: int) -> InFlight | None:
        found = find_in_flight(self._state.book, self._state.saved, self._pods.snapshot())
        return found if found and len(found.container.shares) == count else None

    async def _find(self, ids: frozenset[str]) -> InFlight | None:
        if not self._source.connected:
            # What the bus last announced may be an attempt that failed since; the annotation is of
            # the attempt that was bound.
            await read_signed(self._state, self._pods)
        found = self._in_flight(len(ids))
        if found is None:
            await refresh_book(self._state, self._source, self._pods)
            found = self._in_flight(len(ids))
        return found

    async def _find_repeated(self, ids: frozenset[str], found: InFlight | None) -> Record | None:
        """Return the earlier answer if the kubelet, or this agent, was killed after it.

        While a grant is in flight, only an answer of its own pod can be meant. The kubelet gives
        the ids of an app container to no other one. It reuses those of an init container, but
        stores each answer before its next call, and does not request a stored answer again.
        """
        book, ended = self._state.book, self._pods.snapshot().ended
        same = [
            record
            for record in self._state.saved.records.values()
            if record.device_ids == ids
            and record.pod_uid not in ended
            and (grant := book.of(record.pod_uid)) is not None
            and grant.allocation_id == record.allocation_id
            and (found is None or found.grant.allocation_id == record.allocation_id)
        ]
        last = next((record for record in same if record.role != "init"), None)
        if last is not None or not same:
            return last
        try:
            holdings = await self._kubelet_state.checkpointed_holdings()
        except Unavailable as exc:
            logger.warning("Failed to read the kubelet's checkpoint", extra={"error": str(exc)})
            return None
        stored = {(holding.pod_uid, holding.container) for holding in holdings}
        lost = [record for record in same if (record.pod_uid, record.container) not in stored]
        return next(iter(lost if found else lost or same), None)

    def _describe_missing(self, count: int) -> str:
        bus = "connected" if self._source.connected else "unavailable"
        return (
            f"no grant is in flight on node {self._node_name} for a container with {count} "
            f"device(s) (bus {bus}): a pod gets devices here only through HAMi's scheduler; set "
            "spec.schedulerName to it, leave spec.nodeName empty, and recreate the pod"
        )

    async def _warn_unscheduled(self, count: int, message: str) -> None:
        """Warn on pods that may have caused the call: they wait here and have no grant."""
        for pod in self._pods.waiting_for(count):
            if self._state.book.of(pod.uid) is None and not self._state.saved.of_pod(pod.uid):
                await self._pods.warn(pod, message)

    # The answer

    async def _answer_again(self, record: Record) -> ContainerSpec:
        logger.info(
            "Repeating the stored answer to an allocation", extra={"pod_uid": record.pod_uid}
        )
        grant = self._state.book.of(record.pod_uid)
        if grant is None:
            raise NotFound(f"the grant of pod {record.pod_uid} has ended")
        # The kubelet has lost HAMi's answer to an adopted pod, and takes ours in its place.
        record = replace(record, foreign=False)
        env = await self._pods.container_env(grant, record.container)
        async with self._cut(record) as cut:
            await self._save(grant, cut)
        self._confirm(grant)
        return self._slices.spec(cut, env)

    async def _answer(self, found: InFlight, ids: frozenset[str]) -> ContainerSpec:
        """Answer for one container. Raises: _Outdated, HamiError."""
        grant, container = found
        with allocate_span(grant, container):
            try:
                env = await self._pods.container_env(grant, container.name)
                record = self._slices.record(str(uuid4()), ids, grant, container, env)
                async with self._cut(self._with_own_cache_dir(record)) as cut:
                    await self._save(grant, cut, expected=found)
            except HamiError as exc:
                await self._report_failure(grant, str(exc))
                raise
            self._confirm(grant)
            logger.info("Allocated", extra={"container": cut.container, "cards": list(cut.cards)})
            return self._slices.spec(cut, env)

    def _cut(self, record: Record) -> AbstractAsyncContextManager[Record]:
        """Create the record's MIG instances first, on cards in MIG mode."""
        return nullcontext(record) if self._mig is None else self._mig.cutting(record)

    def _with_own_cache_dir(self, record: Record) -> Record:
        """Rename the cache folder if another answer has it, as a container may have mounted it."""
        records = self._state.saved.records.values()
        if all(other.cache_dir != record.cache_dir for other in records):
            return record
        return replace(record, cache_dir=f"{record.cache_dir}_{record.nonce}")

    async def _save(
        self, grant: NodeGrant, record: Record, *, expected: InFlight | None = None
    ) -> None:
        """Write the container's files, then its record. Raises: _Outdated, Unavailable."""

        def edit(saved: AgentState) -> AgentState:
            if expected is not None and saved.has_answered(expected.grant, record.container):
                raise _OutdatedGrant
            return saved.with_records([record])

        await self._state.change(edit, first=lambda: self._slices.write(record, new=bool(expected)))

    # The report

    def _confirm(self, grant: NodeGrant) -> None:
        """Report the pod when the kubelet has stored its answers, in the background."""
        if is_complete(grant, self._state.saved.records.values()):
            task = asyncio.create_task(self._report(grant))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)

    async def _report(self, grant: NodeGrant) -> None:
        if not await self._has_its_answers(grant):
            logger.warning(
                "Failed to allocate to the right pod: another pod received this pod's devices",
                extra={"pod_uid": grant.pod_uid},
            )
            return
        try:
            await self._state.change(
                lambda saved: saved.with_report(self._reports.allocated_report(grant, saved))
            )
        except HamiError as exc:
            # The next comparison with the ledger reports it.
            logger.error("Failed to store the report of a pod", extra={"error": str(exc)})

    async def _has_its_answers(self, grant: NodeGrant) -> bool:
        """Return whether the kubelet has stored the answers of this pod; True if unknown."""
        wanted = {
            record.nonce: (record.pod_uid, record.container)
            for record in self._state.saved.of_pod(grant.pod_uid)
            if record.allocation_id == grant.allocation_id
        }
        deadline = time.monotonic() + CONFIRM_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(Unavailable):
                holdings = await self._kubelet_state.checkpointed_holdings()
                stored = {h.answer.nonce: h for h in holdings if h.answer is not None}
                if any(
                    (stored[nonce].pod_uid, stored[nonce].container) != owner
                    for nonce, owner in wanted.items()
                    if nonce in stored
                ):
                    return False
                if wanted.keys() <= stored.keys():
                    return True
            await asyncio.sleep(_CONFIRM_POLL_S)
        return True

    async def _report_failure(self, grant: NodeGrant, reason: str) -> None:
        logger.error("Failed to allocate", extra={"error": reason})
        report = self._reports.failed_report(grant, reason)
        try:
            await self._state.change(lambda saved: saved.with_report(report))
        except HamiError as exc:
            logger.error(
                "Failed to store the report of a failed allocation", extra={"error": str(exc)}
            )
