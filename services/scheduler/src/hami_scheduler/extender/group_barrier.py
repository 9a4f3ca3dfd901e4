"""Barrier at /bind: members of a group wait until all that start together are at /bind.

kube-scheduler binds each pod in its own goroutine, so one may wait. Then all grants are written in
one commit, all or none. If a member comes too late or has no place any more, the wait of all ends:
kube-scheduler frees the resources that it held for them, and the group backs off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from hamicommon.domain.ids import PodUid
from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.pod_groups import PodGroup
from hamicommon.ledger.model import Change, Draft, Entry

from hami_scheduler.ledger.writer import Answer, LedgerWriter
from hami_scheduler.placement.groups import GroupPlans

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    draft: Draft
    answer: asyncio.Future[Change]


@dataclass(slots=True)
class _Gate:
    timer: asyncio.TimerHandle
    waiting: dict[PodUid, _Waiting] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class GroupBarrier:
    """Holds members at /bind; without `is_on` each is bound separately (a plugin holds them)."""

    plans: GroupPlans
    writer: LedgerWriter
    is_on: bool
    _gates: dict[PodGroup, _Gate] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.plans.at_barrier = lambda group: group in self._gates
        self.plans.on_vain = lambda group, why: self._fail(group, why, result="refused")
        self.plans.on_member_gone = self._let_go

    async def enter(self, draft: Draft) -> Change:
        """Begin the pod's grant; that of a group's member together with the other members' grants.

        Raises: as `LedgerWriter.enter`, Conflict if the others did not come.
        """
        members = self.plans.members
        group = members.of(draft.pod_uid)
        found = None if group is None else members.assembly(group)
        if group is None or found is None or not found.needed:
            return await self.writer.enter(Entry(draft=draft))
        if not self.is_on or members.is_held_elsewhere(group):
            change = await self.writer.enter(Entry(draft=draft))
            self.plans.on_started(group, [draft.pod_uid])
            return change
        gate = self._gates.get(group)
        if gate is None:
            timer = asyncio.get_running_loop().call_later(
                self.plans.bind_s, self._time_out, group, found.needed
            )
            gate = self._gates[group] = _Gate(timer)
        here = gate.waiting.get(draft.pod_uid)
        if here is None or here.draft is not draft:
            if here is not None:
                _end(here, Conflict("a later /bind of the pod took its place"))
            here = gate.waiting[draft.pod_uid] = _Waiting(
                draft, asyncio.get_running_loop().create_future()
            )
        if len(gate.waiting) >= found.needed:
            self._open(group, self._gates.pop(group))
        # A call that is repeated waits for the same answer.
        return await asyncio.shield(here.answer)

    def _let_go(self, group: PodGroup, uid: PodUid) -> None:
        """End the wait of a deleted pod; the other members wait for its replacement."""
        gate = self._gates.get(group)
        here = None if gate is None else gate.waiting.pop(uid, None)
        if here is not None:
            _end(here, NotFound(f"pod {here.draft.pod_name} is gone"))

    def _open(self, group: PodGroup, gate: _Gate) -> None:
        gate.timer.cancel()
        waiting = list(gate.waiting.values())
        answers = self.writer.submit_together(
            [Entry(draft=each.draft, together=group.key) for each in waiting]
        )
        together = asyncio.gather(*answers)
        together.add_done_callback(
            lambda done: (
                self._on_committed(group, waiting, done.result()) if not done.cancelled() else None
            )
        )

    def _on_committed(
        self, group: PodGroup, waiting: Sequence[_Waiting], answers: Sequence[Answer]
    ) -> None:
        granted = [
            each.draft.pod_uid
            for each, a in zip(waiting, answers, strict=True)
            if isinstance(a, Change)
        ]
        if granted:
            self.plans.on_started(group, granted)
        for each, answer in zip(waiting, answers, strict=True):
            if isinstance(answer, Change):
                if not each.answer.done():
                    each.answer.set_result(answer)
            else:
                assert isinstance(answer, HamiError)
                _end(each, answer)

    def _time_out(self, group: PodGroup, needed: int) -> None:
        here = len(self._gates[group].waiting)
        reason = (
            f"{here} of {needed} pods of group {group.key} came to be bound within "
            f"{self.plans.bind_s:g} s"
        )
        self._fail(group, reason, result="timed_out")

    def _fail(self, group: PodGroup, reason: str, *, result: str) -> None:
        gate = self._gates.pop(group, None)
        if gate is None:
            return
        gate.timer.cancel()
        extra = {"group": group.key, "waiting": len(gate.waiting), "reason": reason}
        logger.warning("Gave up the bindings of a group", extra=extra)
        self.plans.give_up(group, reason, result=result)
        for each in gate.waiting.values():
            _end(each, Conflict(reason))


def _end(waiting: _Waiting, error: HamiError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
        waiting.answer.exception()  # its caller may be gone
