"""Late binding: the slice is looked up when the container is about to start and its pod is known.

Allocate answers a nonce and waits for nobody, so the order of Allocate calls means nothing and
nothing needs repair. PreStartContainer reads in the
kubelet's checkpoint who holds the nonce, and describes it in a CDI file for that container:
cards, the limits directory of the nonce, the preload. `adapters/cdi_files.py` writes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import NoReturn
from uuid import uuid4

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError, Unavailable

from hami_node_agent.allocation.container_owners import ContainerOwners
from hami_node_agent.allocation.late_binding_rules import NamedBy, late_answer
from hami_node_agent.allocation.node_ports import DescribedSlices, DeviceDescriptions, NodePorts
from hami_node_agent.allocation.response import (
    AnswerPolicy,
)
from hami_node_agent.allocation.whole_cards import NOT_WHOLE
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.records import Record
from hami_node_agent.grants.signed import refresh_book
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)

# containerd learns of a file by inotify; 5 ms were enough in 3600 of 3600 trials, none was not.
SETTLE_S = 0.02


class LateBinding:
    """The Allocate and PreStartContainer use cases of late-bound containers."""

    def __init__(
        self,
        node: NodePorts,
        *,
        devices: DeviceDescriptions,
        answers: AnswerPolicy,
        named_by: NamedBy = NamedBy.FIELD,
        unproven: str = "",
        mig: MigInstances | None = None,
    ) -> None:
        """`unproven`: why it is not known that the runtime honours CDI; empty: it is, or the
        operator set it so. Nothing that rests on it is started then."""
        self._named_by = named_by
        self._unproven = unproven
        self._state = node.state
        self._owners = ContainerOwners(node.kubelet_state, node.pods)
        self._source = node.source
        self._pods = node.pods
        self._slices = DescribedSlices(node, devices=devices, answers=answers)
        self._mig = mig
        self._turn = asyncio.Lock()

    def allocate(self, requests: Iterable[frozenset[str]]) -> list[ContainerSpec]:
        """A new nonce for each container; none is ever used again."""
        return [late_answer(str(uuid4()), self._named_by) for _ in requests]

    async def check(self, ids: frozenset[str]) -> bool:
        """Returns when the container with these ids may start; False: its answer is no nonce.

        Raises: Conflict when it must not start, Unavailable when that can't be known now.
        """
        owners = await self._owners.with_answers(ids)
        if any(owner.answer is None or owner.answer.cards for owner in owners):
            return False  # HAMi's answer, or ours from the lock way
        if self._unproven:
            # A runtime that does not honour CDI would start it without limits.
            raise Unavailable(f"the container waits: its slice comes by CDI, and {self._unproven}")
        if any(self._in_book(owner) is None for owner in owners):
            # Before the lock: the others of the node do not wait for the ledger.
            await refresh_book(self._state, self._source, self._pods)
        async with self._turn:
            fresh = await self._settle_all(owners)
        if fresh:
            await asyncio.sleep(SETTLE_S)
        return True

    async def _settle_all(self, owners: Iterable[Holding]) -> bool:
        """True when something is new. Raises: Conflict, Unavailable when no owner may start.

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
        """Puts everything in place; True when something is new. Raises: Conflict, Unavailable."""
        assert owner.answer is not None
        nonce = owner.answer.nonce
        known = self._state.saved.records.get(nonce)
        own = known is not None and known.belongs_to(owner.pod_uid, owner.container)
        found = self._in_book(owner)
        if found is None and known is not None and own:
            # Nobody can be asked, or the ledger has ended what runs: as it was started before.
            await self._require_devices(owner, known)
            await asyncio.to_thread(self._slices.put, known, {})
            return False
        if found is None:
            await self._refuse(owner, self._no_grant(owner))
        grant, granted = found
        env = await self._pods.container_env(grant, granted.name)
        if known is not None and own:
            if grant.allocation_id != known.allocation_id:
                known = await self._renewed(known, owner, nonce, found, env)
            await self._require_devices(owner, known)
            await asyncio.to_thread(self._slices.put, known, env)
            return False
        try:
            async with self._cut(
                self._slices.record(nonce, owner.device_ids, grant, granted, env)
            ) as record:
                await self._state.change(
                    lambda saved: self._slices.recorded(saved, grant, record),
                    first=lambda: self._slices.make(record, env),
                )
        except Conflict as exc:
            await self._refuse(owner, str(exc))
        logger.info(
            "bound late",
            extra={
                "pod_uid": owner.pod_uid,
                "container": owner.container,
                "cards": list(record.cards),
            },
        )
        return True

    async def _renewed(
        self,
        known: Record,
        owner: Holding,
        nonce: str,
        found: tuple[NodeGrant, ContainerGrant],
        env: Mapping[str, str],
    ) -> Record:
        """The record under the pod's present allocation: a file's cards are for its life."""
        record = self._slices.record(nonce, owner.device_ids, *found, env)
        if set(record.cards) != set(known.cards) or (known.mig_uuids and not _alike(record, known)):
            reason = (
                "its slices are on other cards now; delete the pod, its controller makes a new one"
            )
            await self._refuse(owner, reason)
        if known.plain and not record.plain:
            reason = f"it was described without the library, {NOT_WHOLE}"
            await self._refuse(owner, reason)
        record = replace(record, mig_uuids=known.mig_uuids, plain=known.plain)
        await self._state.change(lambda saved: self._slices.recorded(saved, found[0], record))
        return record

    def _cut(self, record: Record) -> AbstractAsyncContextManager[Record]:
        """With the instances that were made for it, on cards in MIG mode."""
        return nullcontext(record) if self._mig is None else self._mig.cutting(record)

    async def _require_devices(self, owner: Holding, record: Record) -> None:
        """Raises: Conflict when its MIG devices are gone, Unavailable."""
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
            "to HAMi's scheduler, and make the pod again"
        )

    async def _refuse(self, owner: Holding, reason: str) -> NoReturn:
        logger.error("container refused", extra={"pod_uid": owner.pod_uid, "reason": reason})
        pod = self._pods.name_of(owner.pod_uid)
        if pod is None and owner.pod_name:
            pod = PodRef(uid=PodUid(owner.pod_uid), namespace=owner.namespace, name=owner.pod_name)
        if pod is not None:
            await self._pods.warn(pod, reason)
        raise Conflict(f"container {owner.container} must not start: {reason}")


def _alike(one: Record, other: Record) -> bool:
    """Whether both are of the same parts of the same cards."""
    return [(s.uuid, s.detail) for s in one.shares] == [(s.uuid, s.detail) for s in other.shares]
