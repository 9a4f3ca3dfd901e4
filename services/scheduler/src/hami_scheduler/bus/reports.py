"""Consume nodes' reports on their grants; `inventories.py` consumes those on cards.

Messages are read and applied here; all of it is idempotent. `ledger/transitions.py` changes states.
For MIG instances that a node made (protocol 2.6), the row stores the required annotation, and the
pod gets it immediately; if it does not, the mirror writes it at the next comparison
(`pod_annotations.py`). hami-metrics exposes realised instances from the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hamicommon import telemetry
from hamicommon.bus.client import Message
from hamicommon.bus.reader import read_of_node
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, InvalidRequest, NotFound, Unavailable
from hamicommon.events import (
    REPORT,
    Allocated,
    AllocateFailed,
    AnyReport,
    MadeInstance,
    PodGone,
    PodStays,
    StartRefused,
)
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.mig import MigNames, decode_reservations, encode_reservations, with_names

from hami_scheduler.drift import Drift, subject_of
from hami_scheduler.ledger.state_machine import (
    NODE_HAS_IT,
    PodFacts,
    Transition,
    facts_of,
    gone_on_node,
)
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_ending import GONE, PodEnder
from hami_scheduler.pod_events import RUNS_ON, WRONG_DEVICES, Announcer
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)


def name_instances(allocation: Allocation, text: str, made: Iterable[MadeInstance]) -> str:
    """Return the annotation with the names of these MIG instances.

    Raises: InvalidRequest when `text` can't be read.
    """
    index_of = {container.name: container.index for container in allocation.containers}
    names = {
        (index_of[one.container], one.device_index): MigNames(
            card=GpuUuid(one.uuid),
            mig_uuid=one.mig_uuid,
            gpu_instance_id=one.gpu_instance_id,
            compute_instance_id=one.compute_instance_id,
        )
        for one in made
        if one.container in index_of
    }
    return encode_reservations(with_names(decode_reservations(text), names)) if text else ""


ACTOR = "node-agent"
ORPHAN_CLASS = "runs-without-grant"
MAX_ATTEMPTS = 5
MAX_CONCURRENT = 4
"""Maximum number of reports that are applied row by row at the same time."""
MAX_PROBLEM_LENGTH = 512


@dataclass(eq=False, kw_only=True)
class GrantReports:
    """Consumer of `hami.reports.v1.*`."""

    store: AllocationStore
    transitions: Transitions
    drift: Drift
    doubt_mirror: Callable[[PodUid], None]
    pods: PodApi
    ender: PodEnder
    announcer: Announcer
    instruments: SchedulerInstruments
    known_pods: Mapping[PodUid, Mapping[str, Any]]
    _turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT), init=False
    )

    async def handle_all(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        """Apply reports that arrived together, those on one grant in order.

        Each element is None, or why the report was not applied: InvalidRequest, Conflict,
        Unavailable, or an unexpected error.
        """
        answers: list[Exception | None] = [None] * len(messages)
        of_grant: dict[str, list[tuple[int, AnyReport]]] = {}
        for number, message in enumerate(messages):
            try:
                report = read_of_node(REPORT, message.subject, message.data, "report")
            except InvalidRequest as exc:
                answers[number] = exc
            else:
                of_grant.setdefault(report.allocation_id, []).append((number, report))

        async def in_order(reports: Sequence[tuple[int, AnyReport]]) -> None:
            for number, report in reports:
                try:
                    await self._handle(report)
                except Exception as exc:  # noqa: BLE001 - settled by who delivered it
                    answers[number] = exc

        await asyncio.gather(*map(in_order, of_grant.values()))
        return answers

    async def _handle(self, report: AnyReport) -> None:
        if isinstance(report, Allocated) and not report.instances and await self._usual(report):
            return
        async with self._turns:
            if isinstance(report, StartRefused):
                await self._end_pod(report)
            else:
                await self._look(report)

    async def _end_pod(self, report: StartRefused) -> None:
        """Evict a pod whose container got another pod's devices, so that it is recreated.

        Raises: Conflict, Unavailable.
        """
        pod = PodRef(uid=PodUid(report.pod_uid), namespace=report.namespace, name=report.pod_name)
        if report.allocation_id:
            allocation = await self.store.get(AllocationId(report.allocation_id))
            if allocation is not None and allocation.live and allocation.token == report.token:
                await self.transitions.note_failure(allocation, report.reason, actor=ACTOR)
        try:
            problem = await self.ender.end(pod, report.node)
        except Conflict as exc:
            problem = clip(str(exc), MAX_PROBLEM_LENGTH)
        if problem == GONE:
            return
        self.instruments.wrong_devices.labels("failed" if problem else "ended").inc()
        about = {"pod_uid": pod.uid, "node": report.node, "container": report.container}
        if problem:
            extra = {**about, "error": problem}
            logger.warning("Failed to evict a pod that has another pod's devices", extra=extra)
        else:
            self.announcer.announce(pod, WRONG_DEVICES, report.reason)
            logger.warning("Evicted a pod that has another pod's devices", extra=about)

    async def _look(self, report: Allocated | AllocateFailed | PodGone | PodStays) -> None:
        # Each step is guarded by the row as it was read; on a conflict it is read again.
        for _ in range(MAX_ATTEMPTS):
            allocation = await self.store.get(AllocationId(report.allocation_id))
            if allocation is None or allocation.node != report.node:
                raise InvalidRequest(
                    f"{report.node} reports on unknown grant {report.allocation_id}"
                )
            if isinstance(report, PodStays):
                if not allocation.live:
                    await self._report_orphan(allocation)
                return
            if not allocation.live or await self._apply(allocation, report):
                return
        raise Conflict(f"grant {report.allocation_id} changed at each of {MAX_ATTEMPTS} tries")

    async def _report_orphan(self, allocation: Allocation) -> None:
        """Report that a pod's processes run although its object is gone and its grant has ended.

        As when a node was silent for too long and comes back: only the node can end them.
        """
        cards = sorted({share.uuid for each in allocation.containers for share in each.shares})
        text = (
            f"processes of this pod still run on {allocation.node} though its grant is "
            f"{allocation.state} ({allocation.reason}): {', '.join(cards)} may be granted twice "
            "until they exit; kill them on the node"
        )
        # First what may fail: the report comes again then.
        await self.drift.note(ORPHAN_CLASS, subject_of(allocation), text, repaired=False)
        self.announcer.announce(PodRef.of(allocation), RUNS_ON, text)

    async def _usual(self, report: Allocated) -> bool:
        """Take the usual step of a report; return False if another one is due."""
        node, allocation_id = NodeName(report.node), AllocationId(report.allocation_id)
        seen = self.known_pods.get(PodUid(report.pod_uid))
        on_node = self.transitions.is_bound(allocation_id, report.token) or (
            seen is not None and facts_of(seen).node == node
        )
        if on_node:
            # The next pod of the node need not wait for the write below.
            await self.transitions.locks.release_token(node, report.token)
        done = await self.transitions.mark_allocated(
            allocation_id, node=node, token=report.token, actor=ACTOR, about=_about(report)
        )
        if done and not on_node:
            await self.transitions.locks.release_token(node, report.token)
        return done

    async def _apply(
        self, allocation: Allocation, report: Allocated | AllocateFailed | PodGone
    ) -> bool:
        """Apply a report; return False if the row has changed since, or another step is due."""
        if (
            allocation.state is AllocationState.BINDING
            and allocation.token == report.token
            and not isinstance(report, Allocated)
            and await self._is_bound(allocation)
        ):
            # Its binder has not written that down yet.
            verdict = Transition(target=AllocationState.BOUND, reason=NODE_HAS_IT)
            await self.transitions.apply(allocation, verdict, actor=ACTOR)
            return False
        if isinstance(report, PodGone):
            return await self._on_gone(allocation)
        if allocation.token != report.token:
            logger.info(
                "Ignoring a report with an outdated fencing token",
                extra={"allocation_id": allocation.id},
            )
        elif isinstance(report, Allocated):
            if not await self._on_allocated(allocation):
                return False
            if report.instances:
                await self.note_instances(allocation, report.instances)
        else:
            await self.transitions.note_failure(allocation, report.reason, actor=ACTOR)
        return True

    async def _on_allocated(self, allocation: Allocation) -> bool:
        is_binding = allocation.state is AllocationState.BINDING
        if is_binding and not await self._is_bound(allocation):
            # A pod that bypassed us took the answer, and does not start with it. The binding
            # continues, and fails at Allocate; until the pod is here, it is not allocated.
            raise Unavailable(f"pod {allocation.pod_uid} is not bound to {allocation.node} yet")
        # The next pod of the node need not wait for the write below.
        await self.transitions.locks.release(allocation)
        if allocation.state not in (AllocationState.BINDING, AllocationState.BOUND):
            return True
        # `binding`: the kubelet was faster than the answer to our binding.
        target = AllocationState.BOUND if is_binding else AllocationState.ALLOCATED
        verdict = Transition(target=target, reason=NODE_HAS_IT if is_binding else "")
        change = await self.transitions.apply(allocation, verdict, actor=ACTOR)
        return change is not None and not is_binding

    async def note_instances(self, allocation: Allocation, made: Iterable[MadeInstance]) -> None:
        """Write instances' names on the pod, if it exists. Raises: Unavailable (ledger).

        Raises: InvalidRequest when the row's own annotation can't be read.
        """
        known = allocation.annotations.get(MIG_ALLOCATIONS, "")
        text = name_instances(allocation, known, made)
        if allocation.token is None or text == known:
            return
        written = {MIG_ALLOCATIONS: text}
        if not await self.store.annotate(allocation.id, allocation.token, written):
            return
        try:
            await self.pods.annotate(PodRef.of(allocation), annotations=written)
        except NotFound:
            return
        except (Conflict, Unavailable) as exc:
            logger.warning(
                "Failed to annotate a pod with its MIG instances",
                extra={"pod_uid": allocation.pod_uid, "error": str(exc)},
            )
            self.doubt_mirror(allocation.pod_uid)

    async def _is_bound(self, allocation: Allocation) -> bool:
        """Return whether the pod is bound, asking the API server if the watch does not show it."""
        seen = self.known_pods.get(allocation.pod_uid)
        if seen is not None and facts_of(seen).node == allocation.node:
            return True
        return (await pod_facts(self.pods, allocation)).node == allocation.node

    async def _on_gone(self, allocation: Allocation) -> bool:
        verdict = gone_on_node(allocation, await pod_facts(self.pods, allocation))
        if verdict is None:
            return True
        return await self.transitions.apply(allocation, verdict, actor=ACTOR) is not None


async def pod_facts(pods: PodApi, allocation: Allocation) -> PodFacts:
    """Read the allocation's pod from the API server. Raises: Unavailable."""
    gone = PodFacts(uid=PodUid(allocation.pod_uid), exists=False)
    try:
        pod = await pods.get(allocation.namespace, allocation.pod_name)
    except NotFound:
        return gone
    return facts_of(pod) if pod["metadata"]["uid"] == allocation.pod_uid else gone


def _about(report: Allocated) -> dict[str, str]:
    """Return pod and trace for log lines, which are written outside any span."""
    about = {"pod_uid": report.pod_uid}
    for link in telemetry.link_to(report.traceparent):
        about["trace_id"] = f"{link.context.trace_id:032x}"
    return about
