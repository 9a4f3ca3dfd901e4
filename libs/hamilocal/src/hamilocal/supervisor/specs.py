"""What a child of the local system is: a process to keep alive, or a step to do once.

Specs are made by `hamilocal.system`, which knows the parts; `supervisor.Supervisor` runs them.
"""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hamilocal.supervisor.health import HealthCheck, probe_health
from hamilocal.supervisor.plan import ServerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process that runs until the system stops.

    `after` names children that must be ready before its first start. `env` is added to our own
    environment. `prepare` runs before every start, restarts too (it may block: it gets a thread).
    `urls` is copied into the state file. Without `health` it counts as ready once it runs.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    health: HealthCheck | None = None
    after: tuple[str, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Something to do once, such as migrations; it is repeated when it raises."""

    name: str
    run: Callable[[], Awaitable[None]]
    after: tuple[str, ...] = ()
    start_timeout_s: float = 120.0


Spec = ChildSpec | StepSpec


def server_child(plan: ServerPlan, *, after: tuple[str, ...] = ()) -> ChildSpec:
    """An embedded server as a child."""
    return ChildSpec(
        name=plan.name,
        argv=plan.command,
        cwd=plan.cwd,
        env=plan.env,
        health=probe_health(plan.probe),
        after=after,
        urls={plan.name: plan.url},
        prepare=plan.before_start,
        stop_signal=plan.stop_signal,
        start_timeout_s=plan.start_timeout_s,
        stop_grace_s=plan.stop_grace_s,
    )
