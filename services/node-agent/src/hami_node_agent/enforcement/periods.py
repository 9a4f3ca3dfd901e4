"""Turn judgements over time into states with a grace period. Pure, the clock is a parameter.

A state gets worse only when looks found it that bad for a grace period, at least two of them: a
process may be on its card before its region has it, an asynchronous free may be on its way. A good
look takes half of its time off again, so that who is bad for more than a third of the time does not
escape by pausing. It gets better only after a calm: who exceeds its grant every few seconds is in
one state all the time, and makes one line of history. A grant that changed and a gap between looks
begin another grace period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hamicommon.domain.granted_cards import LimitState

from hami_node_agent.enforcement.judgement import Judgement, LimitKey

MIN_LOOKS = 2
MIN_CLEAR_S = 30.0
PARDON = 0.5
"""Part of the time of good samples that is subtracted from bad time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations in seconds."""

    grace_s: float = 10.0
    gap_s: float = 30.0
    """Maximum gap between samples; a longer one resets the bad time."""

    @property
    def recovery_s(self) -> float:
        """Time of good samples after which all bad time is subtracted."""
        return max(MIN_CLEAR_S, 3 * self.grace_s)


@dataclass(frozen=True, slots=True)
class Run:
    """Samples in which a container was at least this bad, with few better ones between."""

    began_s: float
    looks: int
    bad_s: float = 0.0
    """Bad time without what good samples subtract, at most the grace period."""


Runs = tuple[Run | None, Run | None, Run | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of one container on one card; times are seconds of the caller's clock."""

    judgement: Judgement
    """Judgement of the last sample."""
    looked_s: float
    state: LimitState | None = None
    """State; None: bad from the start, but not for long enough."""
    since_s: float = 0.0
    peak_mib: int = 0
    """Maximum memory in this state."""
    runs: Runs = (None, None, None)
    """Runs of samples that were unknown, bypassed, or exceeded, or worse."""
    better_since_s: float | None = None
    """Time since which all samples were better than `state`."""

    @property
    def violating(self) -> bool:
        """Return whether the state is a violation that the last sample confirms."""
        return (
            self.state is not None
            and self.state.violates
            and self.judgement.state.severity >= self.state.severity
        )


_NONE: Runs = (None, None, None)
_LEVELS = (LimitState.UNKNOWN, LimitState.BYPASSED, LimitState.EXCEEDED)
_BY_SEVERITY = {state.severity: state for state in LimitState}


def advance(
    before: Mapping[LimitKey, Standing],
    judged: Mapping[LimitKey, Judgement],
    *,
    now_s: float,
    timing: Timing,
    gone: frozenset[str] = frozenset(),
) -> dict[LimitKey, Standing]:
    """Return the states of all containers after a sample.

    One that was not judged has neither a grant nor a process any more: it is forgotten when its pod
    is among the `gone` (uids), or after the calm.
    """
    after = {key: _next(before.get(key), found, now_s, timing) for key, found in judged.items()}
    for key, standing in before.items():
        if key in after or key.pod_uid in gone:
            continue
        nothing = Judgement(state=LimitState.ENFORCED, granted_mib=0, held_mib=0)
        left = _next(standing, nothing, now_s, timing)
        if left.state not in (None, LimitState.ENFORCED):
            after[key] = left
    return after


def _next(before: Standing | None, judgement: Judgement, now_s: float, timing: Timing) -> Standing:
    severity = judgement.state.severity
    if (
        severity == 0
        and before is not None
        and before.state is LimitState.ENFORCED
        and before.runs == _NONE
    ):
        # As nearly all are nearly always: at the least cost.
        peak_mib = max(before.peak_mib, judgement.held_mib or 0)
        return Standing(
            judgement=judgement,
            looked_s=now_s,
            state=before.state,
            since_s=before.since_s,
            peak_mib=peak_mib,
        )
    if before is None:
        began = _began(Run(now_s, 1), severity)
        well = judgement.state is LimitState.ENFORCED
        return Standing(
            judgement=judgement,
            looked_s=now_s,
            state=LimitState.ENFORCED if well else None,
            since_s=now_s,
            peak_mib=judgement.held_mib or 0,
            runs=began,
        )
    changed = before.judgement.granted_mib != judgement.granted_mib
    if changed or now_s - before.looked_s > timing.gap_s:
        runs = _began(Run(now_s, 1), severity)
    else:
        runs = _longer(before.runs, severity, now_s, now_s - before.looked_s, timing)
    ripe = _ripe(runs, timing)
    standing = replace(before, judgement=judgement, looked_s=now_s, runs=runs)
    current = -1 if before.state is None else before.state.severity
    if ripe > max(current, 0):
        run = runs[ripe - 1]
        assert run is not None
        return _enter_state(standing, _BY_SEVERITY[ripe], run.began_s)
    if before.state is None:
        return _enter_state(standing, LimitState.ENFORCED, now_s) if severity == 0 else standing
    if severity >= current:
        peak_mib = max(before.peak_mib, judgement.held_mib or 0)
        return replace(standing, better_since_s=None, peak_mib=peak_mib)
    better_since_s = now_s if before.better_since_s is None else before.better_since_s
    if now_s - better_since_s >= timing.recovery_s:
        return _enter_state(standing, _BY_SEVERITY[min(ripe, current - 1)], better_since_s)
    return replace(standing, better_since_s=better_since_s)


def _enter_state(standing: Standing, state: LimitState, since_s: float) -> Standing:
    return replace(
        standing,
        state=state,
        since_s=since_s,
        peak_mib=standing.judgement.held_mib or 0,
        better_since_s=None,
    )


def _began(run: Run, severity: int) -> Runs:
    first, second, third = (run if severity >= level.severity else None for level in _LEVELS)
    return first, second, third


def _longer(runs: Runs, severity: int, now_s: float, spent_s: float, timing: Timing) -> Runs:
    if severity == 0 and runs == _NONE:
        return runs
    first, second, third = (
        _run_after(run, severity >= level.severity, now_s, spent_s, timing)
        for level, run in zip(_LEVELS, runs, strict=True)
    )
    return first, second, third


def _run_after(
    run: Run | None, bad: bool, now_s: float, spent_s: float, timing: Timing
) -> Run | None:
    if run is None:
        return Run(now_s, 1) if bad else None
    if bad:
        bad_s = min(run.bad_s + spent_s, timing.grace_s)
        return Run(run.began_s, run.looks + 1, bad_s)
    left_s = run.bad_s - spent_s * PARDON
    return Run(run.began_s, run.looks, left_s) if left_s > 0 else None


def _ripe(runs: Runs, timing: Timing) -> int:
    """Return the worst severity that lasted for long enough; 0: none."""
    for run, level in zip(reversed(runs), reversed(_LEVELS), strict=True):
        if run is not None and run.looks >= MIN_LOOKS and run.bad_s >= timing.grace_s:
            return level.severity
    return 0
