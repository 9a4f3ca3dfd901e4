"""Reports to the scheduler about grants, stored on disk until the bus has stored them.

In: `queue` of a report in the same write as the records it follows from. Out:
`hami.reports.v1.<node>`, consumed by the scheduler, idempotent by `report_id`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any
from uuid import uuid4

from hamicommon import events, telemetry
from hamicommon.clipping import clip
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.process.backoff import Backoff
from hamicommon.process.outages import Outage
from pydantic import ValidationError

from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Publisher
from hami_node_agent.grants.records import AgentState, PendingReport
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

# Pauses after a round that left reports: the bus does not take them, or the disk is full and they
# would be published again.
RETRY_FIRST_S = 1.0
RETRY_LAST_S = 5.0
REASON_LIMIT = 1024
"""Maximum characters of a reason: a report too large for the bus would block all later ones."""


class Reports:
    """Make reports of one node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def allocated_report(self, grant: NodeGrant, saved: AgentState) -> PendingReport:
        """Report that every container of the pod has its answer, with MIG instances if any."""
        instances = tuple(_instances(saved, grant))
        what = "allocated"
        if instances:
            # Others, as after a reset of the card, are another fact.
            names = ",".join(one.mig_uuid for one in instances)
            what += f":{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        return _pending(events.Allocated(**self._base(grant, what), instances=instances))

    def failed_report(self, grant: NodeGrant, reason: str) -> PendingReport:
        """Report that Allocate or PreStartContainer was refused."""
        return _pending(
            events.AllocateFailed(**self._base(grant, "failed"), reason=clip(reason, REASON_LIMIT))
        )

    def start_refused(
        self, pod: PodRef, container: str, nonce: str, grant: NodeGrant | None, reason: str
    ) -> PendingReport:
        """Report that a container got the Allocate response `nonce` of another; its pod ends."""
        allocation_id, token = ("", 0) if grant is None else (grant.allocation_id, grant.token)
        report_id = f"{pod.uid}:{container}:{nonce}:refused"
        return _pending(
            events.StartRefused(
                **self._fields(report_id, allocation_id, pod.uid, token),
                namespace=pod.namespace,
                pod_name=pod.name,
                container=container,
                reason=clip(reason, REASON_LIMIT),
            )
        )

    def gone_report(self, *, allocation_id: str, pod_uid: str, token: int) -> PendingReport:
        """Report that no container of the pod is seen any more."""
        # Found again only where the ledger has the grant again, so no repetition to be dropped.
        report_id = f"{allocation_id}:{token}:gone:{uuid4()}"
        return _pending(events.PodGone(**self._fields(report_id, allocation_id, pod_uid, token)))

    def stays(self, *, allocation_id: str, pod_uid: str, token: int) -> PendingReport:
        """Report that the pod's processes still run although its grant has ended."""
        report_id = f"{allocation_id}:{token}:stays"
        return _pending(events.PodStays(**self._fields(report_id, allocation_id, pod_uid, token)))

    def _base(self, grant: NodeGrant, what: str) -> dict[str, Any]:
        # The same fact has the same id, however often it is found: the bus drops repetitions.
        report_id = f"{grant.allocation_id}:{grant.token}:{what}"
        return {
            **self._fields(report_id, grant.allocation_id, grant.pod_uid, grant.token),
            "traceparent": telemetry.traceparent() or grant.traceparent,
        }

    def _fields(
        self, report_id: str, allocation_id: str, pod_uid: str, token: int
    ) -> dict[str, Any]:
        return {
            "report_id": report_id,
            "node": self._node,
            "allocation_id": allocation_id,
            "pod_uid": pod_uid,
            "token": token,
            "at": datetime.now(UTC),
        }


def _instances(saved: AgentState, grant: NodeGrant) -> Iterator[events.MadeInstance]:
    known = {own.uuid: own for own in saved.instances if own.uuid}
    records = sorted(saved.of_pod(grant.pod_uid), key=lambda record: record.container)
    for record in records:
        for position, uuid in enumerate(record.mig_uuids):
            if uuid in known:
                yield events.MadeInstance(
                    container=record.container,
                    device_index=position,
                    uuid=known[uuid].card,
                    mig_uuid=uuid,
                    gpu_instance_id=known[uuid].gpu_instance,
                    compute_instance_id=known[uuid].compute_instance,
                )


def _pending(report: events.ReportBase) -> PendingReport:
    return PendingReport(report_id=report.report_id, body=report.model_dump_json())


async def send_reports(state: NodeState, bus: Publisher, *, node: str) -> None:
    """Publish queued reports in order until cancelled; each stays queued until it is stored."""
    backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
    outage = Outage(logger, failed="Retrying to send a report", again="Sending reports again")
    while True:
        seen = state.reports_changed.version
        try:
            for waiting in state.saved.reports:
                await _send(waiting, bus, node=node)
                # Sent twice after a power cut, at worst: the scheduler knows the id.
                await state.change(methodcaller("without_report", waiting.report_id))
                backoff.reset()
                outage.on_success()
        except Unavailable as exc:
            outage.on_failure(exc)
            await asyncio.sleep(backoff.next_s())
            continue
        if not state.saved.reports:
            await state.reports_changed.wait(seen)


async def _send(waiting: PendingReport, bus: Publisher, *, node: str) -> None:
    """Publish a report. Raises: Unavailable if it may not be stored."""
    try:
        report = events.REPORT.validate_json(waiting.body)
    except ValidationError as exc:
        logger.error(
            "Dropped an unreadable report", extra={"body": waiting.body, "error": str(exc)}
        )
        return
    await bus.publish(events.reports_subject(node), report, message_id=waiting.report_id)
