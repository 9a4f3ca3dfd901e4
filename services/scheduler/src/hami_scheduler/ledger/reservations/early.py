"""Reservations whose node /filter answers while they are written.

kube-scheduler asks for one pod after the other, so a burst waits as often for a commit as it has
pods. Here a reservation counts in the view at once, goes to the ledger with those of the same
moment, and /bind waits until it is there: nothing outside this process acts on one that is not
committed. With its process such a reservation is lost as if /filter had not been asked; /bind then
places the pod on that very node, or fails, and kube-scheduler tries it again.

A refusal by the ledger would come too late for another plan, so only what should fit is answered
early: plain slices in a namespace without quota, of a pod that had none, while the ledger is quick.
Where other replicas reserve too, the card must have room for both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import CapacityConflict, HamiError, Unavailable
from hamicommon.ledger.cards.demands import CardDemand, is_plain, wanted_by
from hamicommon.ledger.model import BindingClaim, Change, Draft, ReservationWrite, Rules
from hamicommon.process.batches import Batches
from opentelemetry.trace import Span, get_tracer

from hami_scheduler.ledger.reservations.reservers import Reservers, remember
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports import AllocationStore

logger = logging.getLogger(__name__)
tracer = get_tracer(__name__)

# The first of a burst is written at once. Who comes later waits this long, and mostly has its /bind
# in the same statement.
PACE_S = 0.04
# And on while others come, each so soon after the one before: what follows (lock, the agent's
# question, binding) then goes through every program with that of the others. Only where the
# binders wait here: another replica that was asked to bind looks for the row in the ledger.
NEXT_WITHIN_S = 0.04
MOST_WAIT_S = 0.3
MOST = 128
"""Reservations on their way; who comes then waits until some of them are written."""
ENOUGH = MOST // 2
"""So many that wait are written at once: the others are mostly under way then."""
SLOW_S = 0.25
"""A ledger that takes longer for a statement is waited for: it may be away."""
CALM_S = 5.0
"""So long after a start or a refusal everybody waits."""

Broken = Callable[[HamiError], None]
"""Gets why a reservation that was answered is none."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Early:
    draft: Draft
    card: CardDemand
    made_at: float
    broken: Broken
    span: Span
    """From the answer to the commit."""
    claim: BindingClaim | None = None
    sent_at: float | None = None


class EarlyReservations:
    """Those of this replica."""

    def __init__(
        self,
        store: AllocationStore,
        view: LedgerSnapshotCache,
        *,
        rules: Rules,
        has_quota: Callable[[str], bool],
        has_agent: Callable[[NodeName], bool],
        on_freed: Callable[[], None],
        instruments: SchedulerInstruments,
        expects_more: Callable[[], bool] = lambda: True,
        enabled: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`has_quota`: whether the namespace has one, or may have; `expects_more`: whether pods may
        come that were not asked for yet; `clock`: seconds.
        """
        self._store = store
        self._view = view
        self._rules = rules
        self._has_quota = has_quota
        self._has_agent = has_agent
        self._on_freed = on_freed
        self._instruments = instruments
        self._expects_more = expects_more
        self.enabled = enabled
        # Looked up when it is read: a simulation has a clock of its own.
        self._clock = clock or (lambda: time.monotonic())
        self._of_pod: dict[PodUid, tuple[_Early, asyncio.Future[Change | HamiError]]] = {}
        """Answered and not written, the oldest first."""
        self._pods: OrderedDict[PodUid, None] = OrderedDict()
        """For which this replica has reserved."""
        self.reservers = Reservers(lambda: self._clock())
        self._careful_until = self._clock() + CALM_S
        self._batches = Batches[_Early, Change | HamiError](
            self._write,
            key=lambda early: early.draft.pod_uid,
            pace_s=PACE_S,
            calm_s=NEXT_WITHIN_S,
            most_s=MOST_WAIT_S,
            waits_on=self._wait_on,
            enough=ENOUGH,
        )

    async def run(self) -> None:
        """Writes until cancelled."""
        await self._batches.run()

    async def room(self) -> None:
        """Waits while too many are on their way, as long as the ledger is quick.

        A commit of its own would wait longer: for the rows of those, and others for its own.
        """
        until = self._clock() + SLOW_S
        while len(self._of_pod) >= MOST and self._clock() < until:
            _, oldest = next(iter(self._of_pod.values()))
            await asyncio.wait([oldest], timeout=SLOW_S)

    def fits(self, draft: Draft) -> bool:
        """Whether the draft may be answered before it is written."""
        now = self._clock()
        if not self.enabled or now < self._careful_until or draft.pod_uid in self._pods:
            return False
        oldest, _ = next(iter(self._of_pod.values()), (None, None))
        sent_at = None if oldest is None else oldest.sent_at
        if len(self._of_pod) >= MOST or (sent_at is not None and now - sent_at > SLOW_S):
            return False
        if not is_plain(draft, self._rules) or self._has_quota(draft.namespace):
            return False
        node = draft.placement.node
        return self._has_agent(node) and (not self.reservers.others() or self._roomy(draft))

    def _roomy(self, draft: Draft) -> bool:
        """Whether the card keeps half of itself free, for what others reserve at this moment."""
        [card] = wanted_by(draft, self._rules)
        for state in self._view.cluster.cards(draft.placement.node):
            usage, device = state.usage, state.usage.device
            if device.uuid == card.uuid:
                return (
                    2 * (usage.used_slots + card.slots) <= device.slots
                    and 2 * (usage.used_memory_mib + card.memory_mib) <= device.memory_mib
                    and 2 * (usage.used_core_percent + card.core_percent) <= device.core_percent
                )
        return False

    def put(self, draft: Draft, broken: Broken) -> None:
        """Counts it now, and has it written; `broken` is called when it is not."""
        [card] = wanted_by(draft, self._rules)
        early = _Early(
            draft=draft,
            card=card,
            made_at=self._clock(),
            broken=broken,
            span=tracer.start_span("reserve"),
        )
        self.note_own(draft)
        self._view.promise(card)
        self._of_pod[draft.pod_uid] = early, self._batches.put(early)

    @contextmanager
    def counted(self, draft: Draft) -> Iterator[None]:
        """Counts a reservation that waits for its own commit, for as long as it does.

        Else several of them might take from the ledger what an answer rests on.
        """
        cards = wanted_by(draft, self._rules)
        for card in cards:
            self._view.promise(card)
        freed = True
        try:
            yield
            freed = False
        except CapacityConflict:
            freed = False
            raise
        finally:
            for card in cards:
                self._view.settle(card)
            if freed:
                # Others may have been refused for the room that it seemed to take.
                self._on_freed()

    def note_own(self, draft: Draft) -> None:
        """This replica reserves for the pod: it is not answered early again."""
        remember(self._pods, draft.pod_uid)
        self.reservers.note_own(draft.allocation_id)

    async def written(self, pod_uid: PodUid) -> None:
        """Waits until the pod has no reservation on its way."""
        if (found := self._of_pod.get(pod_uid)) is not None:
            await asyncio.wait([found[1]])

    async def all_written(self) -> None:
        """Waits for those that are on their way now."""
        if waiting := [future for _, future in self._of_pod.values()]:
            await asyncio.wait(waiting)

    async def claim(self, claim: BindingClaim) -> Allocation | None:
        """Waits for the pod's reservation, and claims it in the same statement if that can be.

        None: it is to be claimed in the ledger, or there is none. Raises: Unavailable.
        """
        found = self._of_pod.get(claim.pod_uid)
        if found is None:
            return None
        early, future = found
        unclaimed = early.sent_at is None and early.claim is None
        mine = unclaimed and early.draft.placement.node == claim.node
        if mine:
            early.claim = claim
            if not self._expects_more():
                self._batches.look()
        await asyncio.wait([future])
        answer = future.result()
        if isinstance(answer, Unavailable):
            raise answer
        if not mine or isinstance(answer, HamiError):
            return None
        allocation = answer.allocation
        return allocation if allocation.state is AllocationState.BINDING else None

    def _wait_on(self, waiting: Sequence[_Early]) -> bool:
        """Whether others may come, while the binders of those that wait do so here.

        A /bind that is not here may not have been asked for yet, or was asked of another replica.
        """
        unclaimed = [early.made_at for early in waiting if early.claim is None]
        if unclaimed:
            return self._clock() - min(unclaimed) < PACE_S
        return self._expects_more()

    async def _write(self, batch: Sequence[_Early]) -> Sequence[Change | HamiError]:
        for early in batch:
            early.sent_at = self._clock()
        writes = [ReservationWrite(draft=early.draft, claim=early.claim) for early in batch]
        answers: Sequence[Change | HamiError]
        try:
            answers = await self._store.reserve_all(writes)
        except HamiError as exc:
            answers = [exc] * len(batch)
        answered = list(zip(batch, answers, strict=True))
        self._view.written(
            [(early.card, done.counters) for early, done in answered if isinstance(done, Change)]
        )
        for early, answer in answered:
            self._settle(early, answer)
        return answers

    def _settle(self, early: _Early, answer: Change | HamiError) -> None:
        draft = early.draft
        early.span.end()
        del self._of_pod[draft.pod_uid]
        if isinstance(answer, Change):
            self._instruments.transitions.labels(AllocationState.RESERVED.value).inc()
            self._instruments.early_answers.labels("kept").inc()
            return
        self._view.settle(early.card)
        self._careful_until = self._clock() + CALM_S
        self._view.doubt(draft.placement.node)
        self._instruments.early_answers.labels("broken").inc()
        why = {"pod_uid": draft.pod_uid, "node": draft.placement.node, "error": str(answer)}
        logger.warning("reservation not written, /filter had answered it", extra=why)
        early.broken(answer)
        self._on_freed()
