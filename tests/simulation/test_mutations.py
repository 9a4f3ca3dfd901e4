"""Proof that the simulation can fail: it finds each mutation of the code, and soon.

A mutation removes one guard from the code under test. The simulation itself once found half of
these guards missing.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest import mock

import hami_scheduler.ledger.state_machine
import hami_scheduler.reconcile.reconciler
import hami_scheduler.watch.pods
import pytest
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.cleanup.garbage_collection import Sweeper
from hami_scheduler.adapters.nats import NatsGrantAnnouncer
from hami_scheduler.adapters.redis import RedisNodeLock
from hami_scheduler.bus.reports import GrantReports
from hami_scheduler.ledger.quota import QuotaBook
from hami_scheduler.ledger.state_machine import POD_DELETED, Transition
from hami_scheduler.pod_ending import PodEnder
from hamicommon.domain.allocations import AllocationState
from hamicommon.grants.grant import Grant
from hamicommon.ledger.model import StateStep

from tests import measured
from tests.fakes.ledger import FakeLedger
from tests.simulation.model import Broken
from tests.simulation.runner import run
from tests.simulation.scripts import scenario

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MAX_STEPS = 30_000

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A replacement in the code, and the promises of which one must break.

    Some also make the guarded situation more frequent; that change alone breaks no promise.
    """

    patches: tuple[Patch, ...]
    breaks: tuple[str, ...]
    first: int = 0
    """The history with which the search begins."""


async def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Replacement of a check or a loop's work."""


def _anything(*_args: Any, **_kwargs: Any) -> None:
    """Replacement of a guard that raises."""


def _forgets_the_token(real: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: FakeLedger, step: StateStep) -> Any:
        return real(self, replace(step, token=None))

    return advance


def _deletion_is_the_end(real: Callable[..., Any]) -> Callable[..., Any]:
    def verdict(allocation: Any, facts: Any) -> Transition | None:
        if allocation.live and facts.deleting:
            return Transition(target=AllocationState.RELEASED, reason=POD_DELETED)
        found: Transition | None = real(allocation, facts)
        return found

    return verdict


def _gone_is_the_end(allocation: Any, _facts: Any) -> Transition:
    del allocation
    return Transition(target=AllocationState.RELEASED, reason=POD_DELETED)


async def _it_is_over(*_args: Any, **_kwargs: Any) -> str:
    """Replacement of the end of a pod."""
    return "it is over"


async def _yes(*_args: Any) -> bool:
    """Replacement of a question."""
    return True


def _answers_late(real: Callable[..., Any]) -> Callable[..., Any]:
    """Delay the binding: the node knows the grant two seconds earlier."""

    async def offer(self: NatsGrantAnnouncer, grant: Grant) -> bool | None:
        binds_late: bool | None = await real(self, grant)
        await asyncio.sleep(2.0)
        return binds_late

    return offer


_VERDICT = _deletion_is_the_end(hami_scheduler.ledger.state_machine.verdict)

MUTATIONS = {
    "a card is taken without its guard": Mutation(
        patches=((FakeLedger, "_check", _anything),), breaks=("SAFE-1",)
    ),
    "a quota is taken without its guard": Mutation(
        # The active scheduler counts quotas in memory first.
        patches=((FakeLedger, "_check_quota", _anything), (QuotaBook, "conflict", _anything)),
        breaks=("SAFE-4",),
    ),
    "steps are not fenced by their token": Mutation(
        patches=((FakeLedger, "_advance", _forgets_the_token(FakeLedger._advance)),),
        breaks=("SAFE-2", "SAFE-3", "LIVE-2"),
        # Few histories need the token, as one replica decides: about one in 250.
        first=540,
    ),
    "a deletionTimestamp releases": Mutation(
        patches=(
            (hami_scheduler.watch.pods, "verdict", _VERDICT),
            (hami_scheduler.reconcile.reconciler, "verdict", _VERDICT),
        ),
        breaks=("SAFE-3",),
    ),
    "a pod that is gone is released at once": Mutation(
        patches=((hami_scheduler.ledger.state_machine, "_gone_verdict", _gone_is_the_end),),
        breaks=("SAFE-3",),
    ),
    "Allocate's order is trusted, PreStart checks nothing": Mutation(
        patches=((PreStart, "check", _nothing),), breaks=("SAFE-2", "SAFE-3")
    ),
    "a pod that got another one's answer is never ended": Mutation(
        # Without locks the kubelet's order is any order, so many answers go to others than meant.
        patches=((PodEnder, "end", _it_is_over), (RedisNodeLock, "acquire", _nothing)),
        breaks=("LIVE-2",),
    ),
    "the agent does not report that pods left": Mutation(
        patches=((Sweeper, "sweep", _nothing),), breaks=("LIVE-2",)
    ),
    "a report ends a binding that has not begun": Mutation(
        patches=(
            (GrantReports, "_is_bound", _yes),
            (NatsGrantAnnouncer, "offer", _answers_late(NatsGrantAnnouncer.offer)),
        ),
        breaks=("LIVE-2",),
    ),
}


@contextmanager
def apply_mutation(mutation: Mutation) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, wrong in mutation.patches:
            stack.enter_context(mock.patch.object(target, name, wrong))
        yield


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_guard_is_found(name: str) -> None:
    mutation, steps = MUTATIONS[name], 0
    with apply_mutation(mutation):
        for number in count(mutation.first):
            played = run(scenario(f"mutation.{number}"))
            steps += played.steps
            if played.error is not None:
                break
            assert steps < MAX_STEPS, "nothing was found"
    measured.note(f"found after {steps} steps: {name}: {played.error}")
    assert isinstance(played.error, Broken), played.error
    assert str(played.error).partition(":")[0] in mutation.breaks
