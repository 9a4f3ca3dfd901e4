"""Answer PreStartContainer: check before each start that the slices are the container's own.

Input: the ids of the container about to start. The kubelet's state shows which container holds them
and which answer it was given. A late-bound container has only a name as its answer, which
`late_binding.py` describes now. Any other answer names cards and limits of one grant: if it is
another container's (a pod that bypassed the scheduler, calls in another order), the container does
not start, and the scheduler ends its pod so that its controller makes another (HAMi#3096). No lock
is held while the kubelet, the bus and the ledger are asked: one container that is shown late does
not stop the others of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import NoReturn

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, Unavailable

from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import refresh_book
from hami_node_agent.grants.ports import Holding, KubeletState, NodePodApi
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.inventory.mig_instances import MigInstances

logger = logging.getLogger(__name__)

KUBELET_STATE_TIMEOUT_S = 3.0
"""Time-out for the kubelet's checkpoint, which it writes before the call."""
_KUBELET_STATE_POLL_S = 0.1  # PodResources has no watch

_UNKNOWN_ANSWER = (
    "the agent has no record of this container's allocation (its state was lost, or another "
    "plugin allocated it); delete the pod; its controller recreates it"
)
_FOREIGN_ANSWER = (
    "another device plugin gave this container its devices and the ledger has no grant of them; "
    "`hamictl adopt` gives the reason and, with --apply, takes HAMi's pods over, after which the "
    "container starts without action; otherwise delete the pod; its controller recreates it"
)
_NO_GRANT = (
    "the pod took devices without a grant of HAMi's scheduler; remove spec.nodeName or set "
    "spec.schedulerName to HAMi's scheduler, and recreate the pod"
)
_ANOTHERS_ANSWER = (
    "the kubelet gave container {container} the devices that were granted to another container; "
    "the scheduler evicts the pod; its controller recreates it"
)


class PreStart:
    """Answer PreStartContainer."""

    def __init__(
        self,
        node: NodePorts,
        *,
        slices: DescribedSlices,
        late: LateBinding,
        mig: MigInstances | None = None,
    ) -> None:
        self._state = node.state
        self._owners = ContainerOwners(node.kubelet_state, node.pods)
        self._source = node.source
        self._pods = node.pods
        self._reports = node.reports
        self._slices = slices
        self._late = late
        self._mig = mig

    async def check(self, ids: frozenset[str]) -> None:
        """Return when the container with these ids may start.

        Raises: Conflict when it must not, Unavailable when that can't be known now.
        """
        owners = await self._owners.of(ids, with_answers=self._late.is_used)
        late = [owner for owner in owners if owner.binds_late]
        if late:
            await self._late.check(late)
        for owner in owners:
            if not owner.binds_late:
                await self._check(owner)

    async def _check(self, owner: Holding) -> None:
        """Check one container. Raises: Conflict, Unavailable."""
        if not self._is_as_granted(owner):
            # Whatever is changed or refused rests on the ledger's newest answer.
            await refresh_book(self._state, self._source, self._pods)
        known = find_record(owner, self._state.saved)
        grant = self._state.book.of(owner.pod_uid)
        if known is None and owner.answer is None:
            await self._refuse_unknown(owner, grant)
        if known is not None and not known.belongs_to(owner.pod_uid, owner.container):
            await self._refuse_anothers(owner, known, grant)
        record = known or _kept_by_kubelet(owner)
        if grant is not None and grant.allocation_id != record.allocation_id:
            record = await self._renew(owner, record, grant)
        elif known is None:
            await self._refuse(owner, grant, _NO_GRANT)
        if self._mig is not None and (reason := await self._mig.missing(record)):
            await self._refuse(owner, grant, reason)
        await asyncio.to_thread(self._slices.write, record)

    def _is_as_granted(self, owner: Holding) -> bool:
        known, grant = find_record(owner, self._state.saved), self._state.book.of(owner.pod_uid)
        return (
            known is not None
            and grant is not None
            and known.belongs_to(owner.pod_uid, owner.container)
            and known.allocation_id == grant.allocation_id
        )

    async def _renew(self, owner: Holding, known: Record, grant: NodeGrant) -> Record:
        """Record the answer under the pod's present grant.

        The agent's state or the ledger's was lost since. Raises: Conflict, Unavailable.
        """
        granted = grant.container(owner.container)
        if granted is None:
            await self._refuse(owner, grant, _NO_GRANT)
        env = await self._pods.container_env(grant, granted.name)
        try:
            record = self._slices.renew(known, grant, granted, env)
        except Conflict as exc:
            await self._refuse(owner, grant, str(exc))
        await self._state.change(lambda saved: self._slices.add_records(saved, grant, record))
        return record

    # Refusals

    async def _refuse_unknown(self, owner: Holding, grant: NodeGrant | None) -> NoReturn:
        if owner.foreign is None:
            await self._refuse(owner, grant, _UNKNOWN_ANSWER)
        if grant is not None and grant.answered:
            raise Unavailable("the container waits until its adoption is recorded")
        await self._refuse(owner, grant, _FOREIGN_ANSWER)

    async def _refuse_anothers(
        self, owner: Holding, known: Record, grant: NodeGrant | None
    ) -> NoReturn:
        """Refuse the start, and have the scheduler end the pod, which got another pod's answer."""
        pod = self._pod_of(owner)
        if pod is None:
            raise Unavailable(f"the container waits until the agent sees its pod {owner.pod_uid}")
        reason = _ANOTHERS_ANSWER.format(container=owner.container)
        if grant is None:
            reason = f"{reason}; {_NO_GRANT}"
        report = self._reports.start_refused(pod, owner.container, known.nonce, grant, reason)
        await self._state.change(lambda saved: saved.with_report(report))
        await self._warn(owner, reason)

    async def _refuse(self, owner: Holding, grant: NodeGrant | None, reason: str) -> NoReturn:
        if grant is not None:
            report = self._reports.failed_report(grant, reason)
            await self._state.change(lambda saved: saved.with_report(report))
        await self._warn(owner, reason)

    async def _warn(self, owner: Holding, reason: str) -> NoReturn:
        about = {"pod_uid": owner.pod_uid, "container": owner.container, "reason": reason}
        logger.error("Refusing the start of a container", extra=about)
        pod = self._pod_of(owner)
        if pod is not None:
            await self._pods.warn(pod, reason)
        raise Conflict(f"container {owner.container} must not start: {reason}")

    def _pod_of(self, owner: Holding) -> PodRef | None:
        pod = self._pods.name_of(owner.pod_uid)
        if pod is None and owner.pod_name:
            pod = PodRef(uid=PodUid(owner.pod_uid), namespace=owner.namespace, name=owner.pod_name)
        return pod


def find_record(owner: Holding, saved: AgentState) -> Record | None:
    """Return the record of the container, by its nonce or otherwise by its device ids."""
    if owner.answer is not None:
        return saved.records.get(owner.answer.nonce)
    same = [record for record in saved.records.values() if record.device_ids == owner.device_ids]
    own = [record for record in same if record.belongs_to(owner.pod_uid, owner.container)]
    if owner.foreign is not None:
        # An earlier owner's answer of ours is not the one that this container holds.
        return next((record for record in own if record.foreign), None)
    # An init container and the containers after it may share ids; without the checkpoint only
    # containers that stay are seen, so the answer of one that stays is the one meant.
    staying = [record for record in same if record.role != "init"]
    return next(iter(own or staying or same), None)


def _kept_by_kubelet(owner: Holding) -> Record:
    """Return a record of an answer that only the kubelet has, because ours was lost."""
    answer = owner.answer
    assert answer is not None
    return Record(
        nonce=answer.nonce,
        device_ids=owner.device_ids,
        allocation_id=AllocationId(""),
        pod_uid=PodUid(owner.pod_uid),
        namespace=owner.namespace,
        pod_name=owner.pod_name,
        container=owner.container,
        role="app",
        token=0,
        shares=tuple(
            DeviceShare(uuid=card, vendor="NVIDIA", memory_mib=0, core_percent=0)
            for card in answer.cards
        ),
        # With the library comes its directory.
        plain=not answer.cache_dir,
        cache_dir=answer.cache_dir,
    )


class ContainerOwners:
    """Find the containers that hold ids: one, or successive ones of one pod."""

    def __init__(self, kubelet_state: KubeletState, pods: NodePodApi) -> None:
        self._kubelet_state = kubelet_state
        self._pods = pods

    async def of(self, ids: frozenset[str], *, with_answers: bool) -> list[Holding]:
        """Return the containers that hold exactly these ids, waiting until the kubelet shows one.

        `with_answers`: only the checkpoint will do. Raises: Unavailable when nothing is shown.
        """
        deadline = time.monotonic() + KUBELET_STATE_TIMEOUT_S
        while True:
            try:
                owners = await self._look(ids)
                problem = "the kubelet's checkpoint and PodResources show no container with its ids"
                if owners and with_answers and not all(o.answer or o.foreign for o in owners):
                    owners = []
                    problem = (
                        "the kubelet's checkpoint, the only place with the names, can't be read"
                    )
                if owners:
                    return owners
            except Unavailable as exc:
                problem = str(exc)
            if time.monotonic() > deadline:
                raise Unavailable(f"the container waits: {problem}")
            await asyncio.sleep(_KUBELET_STATE_POLL_S)

    async def _look(self, ids: frozenset[str]) -> list[Holding]:
        # The rest of the kubelet's state takes as long to read again, and shows more where the
        # checkpoint is damaged or behind.
        with contextlib.suppress(Unavailable):
            if owners := self._with_ids(ids, await self._kubelet_state.checkpointed_holdings()):
                return owners
        return self._with_ids(ids, await self._kubelet_state.holdings())

    def _with_ids(self, ids: frozenset[str], holdings: tuple[Holding, ...]) -> list[Holding]:
        """Leave out ended pods, whose entries stay in the checkpoint for a while."""
        ended = self._pods.snapshot().ended
        return [h for h in holdings if h.device_ids == ids and h.pod_uid not in ended]
