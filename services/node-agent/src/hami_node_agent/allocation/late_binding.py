"""Late binding: find the slice when the container is about to start and its pod is known.

Allocate answers with a nonce and waits for no grant, so the order of Allocate calls does not
matter. PreStartContainer learns from the kubelet's checkpoint which container holds the nonce, and
describes it in a CDI file for that container: cards, the limits directory of the nonce, the
preload. `adapters/cdi_files.py` writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import NoReturn
from uuid import uuid4

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError, Unavailable

from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts, allocate_span
from hami_node_agent.allocation.response import NamedBy, late_answer
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import refresh_book
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)

# containerd learns of a file by inotify; 5 ms were enough in 3600 of 3600 trials, none was not.
SETTLE_S = 0.02


class _AlreadyDescribed(Exception):
    """Error: another call has described the slice already."""


class LateBinding:
    """Answer Allocate and PreStartContainer for late-bound containers."""

    def __init__(
        self,
        node: NodePorts,
        *,
        slices: DescribedSlices,
        is_used: bool,
        named_by: NamedBy = NamedBy.FIELD,
        unproven: str = "",
        mig: MigInstances | None = None,
    ) -> None:
        """`is_used`: whether new containers bind late; earlier ones may have, anyway.

        `unproven`: why it is not known that the runtime honours CDI; empty: it is, or the operator
        set it so. Nothing that rests on it is started then.
        """
        self.is_used = is_used
        self._named_by = named_by
        self._unproven = unproven
        self._state = node.state
        self._source = node.source
        self._pods = node.pods
        self._slices = slices
        self._mig = mig

    def allocate(self, requests: Iterable[frozenset[str]]) -> list[ContainerSpec]:
        """Answer with a new nonce for each container; none is used twice."""
        return [late_answer(str(uuid4()), self._named_by) for _ in requests]

    async def check(self, owners: Sequence[Holding]) -> None:
        """Return when the container, one of `owners`, may start.

        Raises: Conflict when it must not start, Unavailable when that can't be known now.
        """
        if self._unproven:
            # A runtime that does not honour CDI would start it without limits.
            raise Unavailable(f"the container waits: its slice comes by CDI, and {self._unproven}")
        if any(self._in_book(owner) is None for owner in owners):
            await refresh_book(self._state, self._source, self._pods)
        if await self._settle_all(owners):
            await asyncio.sleep(SETTLE_S)

    async def _settle_all(self, owners: Iterable[Holding]) -> bool:
        """Prepare all owners; return True if one is new.

        Raises: Conflict, Unavailable if none may start.

        A dead pod's entry may still be in the checkpoint with these ids. Who of several owners is
        about to start is not known; one that may not has no file, and its runtime refuses it.
        """
        settled: list[bool] = []
        refused: list[HamiError] = []
        for owner in owners:
            try:
                settled.append(await self._settle(owner))
            except (Conflict, Unavailable) as exc:
                refused.append(exc)
        if not settled:
            raise refused[0]
        return any(settled)

    async def _settle(self, owner: Holding) -> bool:
        """Prepare one container; return True if it is new. Raises: Conflict, Unavailable."""
        assert owner.answer is not None
        nonce = owner.answer.nonce
        known = self._state.saved.records.get(nonce)
        own = known is not None and known.belongs_to(owner.pod_uid, owner.container)
        found = self._in_book(owner)
        if found is None and known is not None and own:
            # The ledger is unavailable, or has ended a running grant: prepare it as before.
            await self._require_devices(owner, known)
            await asyncio.to_thread(self._slices.put, known, {})
            return False
        if found is None:
            await self._refuse(owner, self._no_grant(owner))
        grant, granted = found
        env = await self._pods.container_env(grant, granted.name)
        if known is not None and own:
            if grant.allocation_id != known.allocation_id:
                known = await self._renew(known, owner, grant, granted, env)
            await self._require_devices(owner, known)
            await asyncio.to_thread(self._slices.put, known, env)
            return False
        fresh = self._slices.record(nonce, owner.device_ids, grant, granted, env)
        try:
            with allocate_span(grant, granted):
                async with self._cut(fresh) as record:
                    await self._save(grant, record, env)
                about = {"container": owner.container, "cards": list(record.cards)}
                logger.info("Allocated", extra=about)
        except _AlreadyDescribed:
            return False
        except Conflict as exc:
            await self._refuse(owner, str(exc))
        return True

    async def _save(self, grant: NodeGrant, record: Record, env: Mapping[str, str]) -> None:
        """Save the record. Raises: _Settled if an abandoned call of the kubelet has done so."""

        def edit(saved: AgentState) -> AgentState:
            if record.nonce in saved.records:
                raise _AlreadyDescribed
            return self._slices.add_records(saved, grant, record)

        await self._state.change(edit, first=lambda: self._slices.make(record, env))

    async def _renew(
        self,
        known: Record,
        owner: Holding,
        grant: NodeGrant,
        granted: ContainerGrant,
        env: Mapping[str, str],
    ) -> Record:
        """Record an existing description under the pod's present grant."""
        try:
            record = self._slices.renew(known, grant, granted, env)
        except Conflict as exc:
            await self._refuse(owner, str(exc))
        await self._state.change(lambda saved: self._slices.add_records(saved, grant, record))
        return record

    def _cut(self, record: Record) -> AbstractAsyncContextManager[Record]:
        """Return a context with the record and its MIG instances, which are created if missing."""
        return nullcontext(record) if self._mig is None else self._mig.cutting(record)

    async def _require_devices(self, owner: Holding, record: Record) -> None:
        """Check that the MIG devices exist. Raises: Conflict if not, Unavailable."""
        reason = "" if self._mig is None else await self._mig.missing(record)
        if reason:
            await self._refuse(owner, reason)

    def _in_book(self, owner: Holding) -> tuple[NodeGrant, ContainerGrant] | None:
        grant = self._state.book.of(owner.pod_uid)
        granted = None if grant is None else grant.container(owner.container)
        if grant is None or granted is None or len(granted.shares) != len(owner.device_ids):
            return None
        return grant, granted

    def _no_grant(self, owner: Holding) -> str:
        return (
            f"the pod took {len(owner.device_ids)} device(s) for container {owner.container} "
            "without a grant of HAMi's scheduler; remove spec.nodeName or set spec.schedulerName "
            "to HAMi's scheduler, and recreate the pod"
        )

    async def _refuse(self, owner: Holding, reason: str) -> NoReturn:
        logger.error(
            "Refusing the start of a container", extra={"pod_uid": owner.pod_uid, "reason": reason}
        )
        pod = self._pods.name_of(owner.pod_uid)
        if pod is None and owner.pod_name:
            pod = PodRef(uid=PodUid(owner.pod_uid), namespace=owner.namespace, name=owner.pod_name)
        if pod is not None:
            await self._pods.warn(pod, reason)
        raise Conflict(f"container {owner.container} must not start: {reason}")
