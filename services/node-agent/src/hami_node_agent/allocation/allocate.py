"""Allocate: from the ids of one container to its env, mounts and limits directory.

`grant_lookup.py` finds whom the call is for. Then, in this order: limits and cache directory on
disk, the record and (when the pod is complete) the report in one durable write, and only then the
answer. A kill between any two leaves nothing that a later call does not repair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from uuid import uuid4

from hamicommon import telemetry
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid
from hamicommon.errors import HamiError, NotFound
from opentelemetry import trace

from hami_node_agent.allocation.grant_lookup import GrantFinder
from hami_node_agent.allocation.node_ports import NodePorts
from hami_node_agent.allocation.response import (
    AnswerPolicy,
    cache_dir_name,
    container_response,
    core_policy,
)
from hami_node_agent.allocation.whole_cards import runs_plain
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.devices.replica_ids import card_of, preferred_ids
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.candidates import Candidate, roomiest
from hami_node_agent.grants.records import AgentState, Record, is_complete
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)


class _Outdated(Exception):
    """PreStartContainer changed the records since the grant was found: it may be another's now."""


class Allocate:
    """The Allocate and GetPreferredAllocation use cases; one call at a time."""

    def __init__(
        self,
        node: NodePorts,
        *,
        finder: GrantFinder,
        answers: AnswerPolicy,
        adopts_unmanaged: bool = False,
        mig: MigInstances | None = None,
    ) -> None:
        self._state = node.state
        self._pods = node.pods
        self._files = node.files
        self._reports = node.reports
        self._finder = finder
        self._answers = answers
        self._adopts_unmanaged = adopts_unmanaged
        self._mig = mig
        self._turn = asyncio.Lock()

    def prefer(
        self, *, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Ids on the cards of the grant in flight.

        When none is: empty, or where unmanaged pods are adopted ids on the cards with most room.
        """
        candidate = self._finder.in_flight(size, {})
        if candidate is not None:
            cards = [GpuUuid(share.uuid) for share in candidate.container.shares]
        elif self._adopts_unmanaged:
            cards = roomiest(self._state.cards, self._state.book, size)
        else:
            return ()
        return preferred_ids(cards, available=available, must_include=must_include, size=size)

    async def allocate(self, requests: Sequence[frozenset[str]]) -> list[ContainerSpec]:
        """The answers for these containers, in order; all or none.

        Raises: NotFound when there is no grant, Unavailable when the node can't be written.
        """
        async with self._turn:
            planned: dict[str, Record] = {}
            specs = []
            for ids in requests:
                spec = None
                while spec is None:
                    try:
                        spec = await self._one(ids, planned)
                    except _Outdated:
                        # What PreStartContainer changed is in the records by now.
                        saved = self._state.saved.records
                        planned = {nonce: saved[nonce] for nonce in planned if nonce in saved}
                specs.append(spec)
            return specs

    async def _one(self, ids: frozenset[str], planned: dict[str, Record]) -> ContainerSpec:
        """Raises: _Outdated, and as `allocate`."""
        try:
            found = await self._finder.find(ids, planned)
        except NotFound as exc:
            if self._adopts_unmanaged:
                return await self._provisional(ids, planned)
            await self._warn_unscheduled(len(ids), str(exc))
            raise
        if isinstance(found, Record):
            return await self._again(found)
        return await self._answer(found, ids, planned)

    async def _provisional(self, ids: frozenset[str], planned: dict[str, Record]) -> ContainerSpec:
        """An answer for a pod that nobody knows yet: the kubelet's cards, and no use of them.

        PreStartContainer finds out the pod and puts its limits in, or keeps it from starting.
        """
        nonce = str(uuid4())
        record = Record(
            nonce=nonce,
            device_ids=ids,
            allocation_id=AllocationId(""),
            pod_uid=PodUid(""),
            namespace="",
            pod_name="",
            container="",
            role="app",
            token=0,
            shares=tuple(
                DeviceShare(uuid=card, vendor="NVIDIA", memory_mib=0, core_percent=0)
                for card in sorted({card_of(device_id) for device_id in ids})
            ),
            provisional=True,
            cache_dir=f"unmanaged-{nonce}",
        )
        await self._state.change(
            lambda saved: saved.with_records([record]), first=lambda: self._write(record)
        )
        planned[nonce] = record
        logger.info("answered without a grant", extra={"cards": list(record.cards)})
        return self._spec(record, {})

    async def _again(self, record: Record) -> ContainerSpec:
        logger.info("Allocate again, same answer", extra={"pod_uid": record.pod_uid})
        found = record
        if record.foreign:
            # The kubelet has lost HAMi's answer and takes ours in its place.
            record = replace(record, foreign=False)
        grant = self._state.book.of(record.pod_uid)
        async with self._cut(record) as whole:
            await self._state.change(
                lambda saved: self._repeated(_still_has(saved, found), grant, record, whole)
            )
        record = whole
        await asyncio.to_thread(self._files.write_limits, record)
        env: Mapping[str, str] = {}
        if grant is not None:
            env = await self._pods.container_env(grant, record.container)
        return self._spec(record, env)

    async def _answer(
        self, found: Candidate, ids: frozenset[str], planned: dict[str, Record]
    ) -> ContainerSpec:
        grant = found.grant
        context = telemetry.extract({"traceparent": grant.traceparent})
        with (
            tracer.start_as_current_span("allocate", context=context) as span,
            telemetry.log_context(pod_uid=grant.pod_uid),
        ):
            span.set_attributes(
                {
                    **telemetry.pod_attributes(
                        uid=grant.pod_uid, namespace=grant.namespace, name=grant.pod_name
                    ),
                    "k8s.container.name": found.container.name,
                    "hami.cards": [share.uuid for share in found.container.shares],
                }
            )
            try:
                env = await self._pods.container_env(grant, found.container.name)
                async with self._cut(self._record(found, ids, env)) as record:
                    await self._state.change(
                        lambda saved: self._recorded(_still_waits(saved, found), grant, record),
                        first=lambda: self._write(record),
                    )
                    planned[record.nonce] = record
            except HamiError as exc:
                await self._failed(grant, str(exc))
                raise
            logger.info(
                "allocated", extra={"container": record.container, "cards": list(record.cards)}
            )
            return self._spec(record, env)

    def _cut(self, record: Record) -> AbstractAsyncContextManager[Record]:
        """With the instances that were made for it, on cards in MIG mode."""
        return nullcontext(record) if self._mig is None else self._mig.cutting(record)

    def _record(self, found: Candidate, ids: frozenset[str], env: Mapping[str, str]) -> Record:
        grant, container = found.grant, found.container
        nonce = str(uuid4())
        # On another card than granted it must not start before the ledger was asked.
        own = container == grant.container(container.name)
        others = (each.shares for each in grant.containers if each.name != container.name)
        shares = tuple(chain(container.shares, *others))
        return Record(
            nonce=nonce,
            device_ids=ids,
            allocation_id=grant.allocation_id if own else AllocationId(""),
            pod_uid=grant.pod_uid,
            namespace=grant.namespace,
            pod_name=grant.pod_name,
            container=container.name,
            role=container.role,
            token=grant.token,
            shares=container.shares,
            policy=core_policy(env, self._answers),
            plain=runs_plain(shares, self._state.cards, env, self._answers),
            cache_dir=self._own_cache_dir(grant, container.name, nonce),
        )

    def _own_cache_dir(self, grant: NodeGrant, container: str, nonce: str) -> str:
        """The container's usual name, unless an answer that another container took has it.

        That one runs with the directory mounted, and the library within: it must not be emptied.
        """
        usual = cache_dir_name(grant.pod_uid, container)
        taken = any(record.cache_dir == usual for record in self._state.saved.records.values())
        return f"{usual}_{nonce}" if taken else usual

    def _write(self, record: Record) -> None:
        self._files.write_limits(record)
        self._files.make_cache_dir(record.cache_dir, record.nonce)

    def _recorded(self, saved: AgentState, grant: NodeGrant, record: Record) -> AgentState:
        after = saved.with_records([record])
        if is_complete(grant, after.records.values()):
            after = after.with_report(self._reports.allocated(grant, after))
        return after

    def _repeated(
        self, saved: AgentState, grant: NodeGrant | None, before: Record, now: Record
    ) -> AgentState:
        if grant is not None and now.mig_uuids != before.mig_uuids:
            return self._recorded(saved, grant, now)
        return saved.with_records([now])

    async def _failed(self, grant: NodeGrant, reason: str) -> None:
        logger.error("Allocate failed", extra={"error": reason})
        report = self._reports.failed(grant, reason)
        try:
            await self._state.change(lambda saved: saved.with_report(report))
        except HamiError as exc:
            logger.error("failure not reported", extra={"error": str(exc)})

    def _spec(self, record: Record, env: Mapping[str, str]) -> ContainerSpec:
        return container_response(
            record,
            limits_dir=str(self._files.limits_dir(record.nonce)),
            container_env=env,
            policy=self._answers,
        )

    async def _warn_unscheduled(self, count: int, message: str) -> None:
        """Warns on the pods that may have caused it: waiting here, and without a grant."""
        for pod in self._pods.waiting_for(count):
            if self._state.book.of(pod.uid) is None and not self._state.saved.of_pod(pod.uid):
                await self._pods.warn(pod, message)


def _still_waits(saved: AgentState, found: Candidate) -> AgentState:
    """The state, in which the container has no answer yet. Raises: _Outdated."""
    pod_uid, container = found.grant.pod_uid, found.container.name
    if any(record.counts_for(pod_uid, container) for record in saved.records.values()):
        raise _Outdated
    return saved


def _still_has(saved: AgentState, found: Record) -> AgentState:
    """The state, in which the earlier answer is as it was found. Raises: _Outdated."""
    if saved.records.get(found.nonce) != found:
        raise _Outdated
    return saved
