"""Pods that are bound to a node and have no grant: the ledger lost it, or they came past us.

In: a pod that asks for our cards, met by the reconciler. A grant that the ledger lost is entered
again (`restore.py`); a pod that was bound past the scheduler gets one event with what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.ledger.state_machine import TERMINAL_PHASES, facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import UNMANAGED, Announcer
from hami_scheduler.ports import AllocationStore, DriftJournal
from hami_scheduler.reconcile.restore import REASON, GrantRestorer, Outcome

CLASS = "pod-without-grant"
UNMANAGED_TEXT = (
    "this pod was bound to node {node} past the scheduler {scheduler} and has no grant: its "
    "containers don't start, unless its node's agent asks for one (unmanaged_pods=adopt); remove "
    "spec.nodeName and set spec.schedulerName: {scheduler}; a pod that HAMi started is taken over "
    "by `hamictl adopt`"
)


class UngrantedPods:
    """Restores what was lost, and reports the others, each pod once."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        restorer: GrantRestorer,
        journal: DriftJournal,
        announcer: Announcer,
        instruments: SchedulerInstruments,
        wants_devices: Callable[[JsonMapping], bool],
        scheduler_name: str,
    ) -> None:
        self._store = store
        self._restorer = restorer
        self._journal = journal
        self._announcer = announcer
        self._instruments = instruments
        self._wants_devices = wants_devices
        self._scheduler_name = scheduler_name
        self._reported: set[PodUid] = set()
        """They stand until the pod is gone or has a grant."""

    def keep(self, held: Collection[PodUid], pods: Mapping[PodUid, JsonMapping]) -> None:
        """Forgets what was settled; a comparison of all pods is over.

        `held`: pods with a grant; `pods`: all that are watched.
        """
        self._reported = {
            uid
            for uid in self._reported
            if uid in pods and uid not in held and facts_of(pods[uid]).phase not in TERMINAL_PHASES
        }
        self._instruments.drift_items.labels(CLASS).set(len(self._reported))

    async def check(self, uid: PodUid, pod: JsonMapping) -> int:
        """How many differences the pod is, 0 or 1. Raises: Conflict, Unavailable."""
        facts = facts_of(pod)
        if (
            facts.node is None
            or facts.deleting
            or facts.phase in TERMINAL_PHASES
            or uid in self._reported
            or not self._wants_devices(pod)
            or await self._store.live_of(uid) is not None
        ):
            return 0
        metadata = pod["metadata"]
        subject = f"{metadata['namespace']}/{metadata['name']} ({uid})"
        lost = await self._restorer.restore(pod)
        if lost is not Outcome.NONE:
            if lost is Outcome.RESTORED:
                self._instruments.drift.labels("grant-lost").inc()
                await self._journal.drift("grant-lost", subject, REASON, repaired=True)
            return 1
        self._reported.add(uid)
        text = UNMANAGED_TEXT.format(node=facts.node, scheduler=self._scheduler_name)
        self._announcer.announce(
            PodRef(metadata["namespace"], metadata["name"], uid), UNMANAGED, text
        )
        self._instruments.drift.labels(CLASS).inc()
        await self._journal.drift(CLASS, subject, text, repaired=False)
        return 1
