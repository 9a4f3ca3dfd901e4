"""Decisions of the supervisor: start, restart, stop. Pure: states and the time in, actions out.

A child is started when everything it comes after is ready, restarted with growing pauses when it
ends, given up when it ends too often, and stopped only after everything that depends on it.
`supervisor.Supervisor` feeds this with what happens and carries the actions out. Times are seconds
of one monotonic clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Phases of a child's life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPING = "stopping"
    STOPPED = "stopped"


ALIVE = frozenset({Phase.STARTING, Phase.READY, Phase.STOPPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Pauses double from the first to the last; `max_exits` within `window_s` is the end.

    Exits older than `calm_s` do not lengthen a pause any more.
    """

    first_pause_s: float = 0.1
    last_pause_s: float = 5.0
    calm_s: float = 60.0
    max_exits: int = 20
    window_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildState:
    """One child at one moment; `since_s` is when it entered its phase."""

    name: str
    after: tuple[str, ...] = ()
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0
    phase: Phase = Phase.WAITING
    since_s: float = 0.0
    resume_at_s: float = 0.0
    exits_s: tuple[float, ...] = ()
    restarts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Actions that are due now; `wake_at_s` is when something falls due without any event."""

    start: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    wake_at_s: float | None = None


def on_start(child: ChildState, now_s: float) -> ChildState:
    """Note that the child's process was made."""
    again = child.phase is Phase.BACKING_OFF
    return replace(child, phase=Phase.STARTING, since_s=now_s, restarts=child.restarts + int(again))


def on_ready(child: ChildState, now_s: float) -> ChildState:
    """Note the first health check that succeeded since the start."""
    if child.phase is not Phase.STARTING:
        return child
    return replace(child, phase=Phase.READY, since_s=now_s, reason="")


def on_stop(child: ChildState, now_s: float) -> ChildState:
    """Note that the stop signal was sent, or that there is no process to stop."""
    phase = Phase.STOPPING if child.phase in ALIVE else Phase.STOPPED
    return replace(child, phase=phase, since_s=now_s)


def on_end(child: ChildState, now_s: float, reason: str, policy: RestartPolicy) -> ChildState:
    """Note the end of the process: asked for, or to be restarted unless that is too often."""
    if child.phase is Phase.STOPPING:
        return replace(child, phase=Phase.STOPPED, since_s=now_s)
    exits = (*(at for at in child.exits_s if now_s - at < policy.window_s), now_s)
    if len(exits) >= policy.max_exits:
        text = f"{reason}; given up after {len(exits)} ends within {policy.window_s:g} s"
        return replace(child, phase=Phase.GIVEN_UP, since_s=now_s, exits_s=exits, reason=text)
    recent = sum(now_s - at < policy.calm_s for at in exits)
    pause_s = min(policy.first_pause_s * 2 ** (recent - 1), policy.last_pause_s)
    return replace(
        child,
        phase=Phase.BACKING_OFF,
        since_s=now_s,
        resume_at_s=now_s + pause_s,
        exits_s=exits,
        reason=reason,
    )


def decide(children: Mapping[str, ChildState], now_s: float, *, stopping: bool) -> Actions:
    """The actions that are due, in the order of `children`."""
    if stopping:
        return _decide_stop(children, now_s)
    start = [child.name for child in children.values() if _may_start(child, children, now_s)]
    late = [child.name for child in children.values() if _deadline(child, now_s) == now_s]
    return Actions(start=tuple(start), kill=tuple(late), wake_at_s=_wake_at(children, now_s))


def all_ready(children: Iterable[ChildState]) -> bool:
    """Whether everything has been started and answers."""
    return all(child.phase is Phase.READY for child in children)


def all_stopped(children: Iterable[ChildState]) -> bool:
    """Whether no process is left."""
    return not any(child.phase in ALIVE for child in children)


def _decide_stop(children: Mapping[str, ChildState], now_s: float) -> Actions:
    needed = {name for child in children.values() if child.phase in ALIVE for name in child.after}
    terminate = [
        child.name
        for child in children.values()
        if child.name not in needed and child.phase not in (Phase.STOPPING, Phase.STOPPED)
    ]
    late = [
        child.name
        for child in children.values()
        if child.phase is Phase.STOPPING and _deadline(child, now_s) == now_s
    ]
    return Actions(
        terminate=tuple(terminate), kill=tuple(late), wake_at_s=_wake_at(children, now_s)
    )


def _may_start(child: ChildState, children: Mapping[str, ChildState], now_s: float) -> bool:
    if child.phase is Phase.BACKING_OFF:
        return child.resume_at_s <= now_s
    return child.phase is Phase.WAITING and all(
        children[name].phase is Phase.READY for name in child.after
    )


def _deadline(child: ChildState, now_s: float) -> float | None:
    """When something falls due for this child by time alone, never earlier than now."""
    match child.phase:
        case Phase.STARTING:
            return max(child.since_s + child.start_timeout_s, now_s)
        case Phase.STOPPING:
            return max(child.since_s + child.stop_grace_s, now_s)
        case Phase.BACKING_OFF:
            return None if child.resume_at_s <= now_s else child.resume_at_s
        case _:
            return None


def _wake_at(children: Mapping[str, ChildState], now_s: float) -> float | None:
    times = [
        at for at in (_deadline(child, now_s) for child in children.values()) if at is not None
    ]
    later = [at for at in times if at > now_s]
    return min(later) if later else None
