"""Seeded histories of the whole system on a fake clock; each keeps SAFE-1..6, LIVE-1 and LIVE-2.

pytest tests/simulation                  a few histories
pytest tests/simulation --slow           100,000 steps
pytest tests/simulation --seed 7.31      one history again, as a failure names it
"""

import time
from typing import Any

import pytest
from hami_scheduler.adapters.redis import RedisNodeLock
from hami_scheduler.pod_ending import PodEnder

from tests import measured
from tests.simulation.runner import check, run
from tests.simulation.scripts import TEMPLATE, scenario

PARTS, PART_STEPS = 10, 10_000

pytestmark = pytest.mark.faults


def test_a_history_keeps_every_promise(seed: str) -> None:
    assert check(seed).starts >= 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_steps_keep_every_promise(part: int) -> None:
    began = time.perf_counter()
    histories, steps, starts, commits = _play(str(part))
    took_s = time.perf_counter() - began
    measured.note(
        f"simulation part {part}: {steps} steps in {histories} histories (seeds {part}.0 to "
        f"{part}.{histories - 1}), {commits} commits, "
        f"{starts} container starts, {took_s:.1f} s, {steps / took_s:.0f} steps/s"
    )
    assert starts > histories, "hardly anything was started: the histories show nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", ["unlocked", TEMPLATE])
def test_every_promise_is_kept_by_replicas_that_have_no_node_lock(
    monkeypatch: pytest.MonkeyPatch, seeds: str
) -> None:
    """The lock only saves pods that would be ended, so it may be lost. Pods of one template differ
    only in the card, so an answer that goes to another of them is easily missed."""
    ended = 0
    real = PodEnder.end

    async def end_and_count(self: PodEnder, *about: Any, **more: Any) -> str:
        nonlocal ended
        problem = await real(self, *about, **more)
        ended += not problem
        return problem

    monkeypatch.setattr(PodEnder, "end", end_and_count)
    monkeypatch.setattr(RedisNodeLock, "acquire", _skip_sleep)
    histories, steps, starts, _ = _play(seeds)
    measured.note(
        f"simulation without node locks ({seeds}): {steps} steps, {starts} container starts, "
        f"{ended} pods ended because they had another one's answer"
    )
    assert starts > histories, "hardly anything was started: the histories show nothing"
    assert ended, "no answer went to another pod: the histories show nothing"


def _play(seeds: str) -> tuple[int, int, int, int]:
    """Play the seeds with this prefix; return how many, and their steps, starts and commits."""
    histories = steps = starts = commits = 0
    while steps < PART_STEPS:
        played = check(f"{seeds}.{histories}")
        steps, histories = steps + played.steps, histories + 1
        starts, commits = starts + played.starts, commits + played.commits
    return histories, steps, starts, commits


async def _skip_sleep(*_args: Any, **_kwargs: Any) -> None:
    """Replacement of the wait for the lock."""


def test_a_seed_is_a_history_to_the_byte() -> None:
    first, again, other = (run(scenario(seed)) for seed in ("same", "same", "other"))

    assert first.history == again.history
    assert first.digest == again.digest != other.digest
