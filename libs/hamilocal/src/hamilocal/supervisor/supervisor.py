"""Supervisor: keep the children of a local system running, and record them in the state file.

Each child has one task: it waits until everything that the child comes after is ready, starts it,
watches its health, and restarts it with growing pauses until it ends too often. On SIGTERM, SIGINT
or `stop()` a child is stopped after everything that depends on it. `hamictl up` runs a supervisor,
detached or not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from hamilocal.supervisor.children import Child, identity_of, spawn
from hamilocal.supervisor.plan import ChildSpec, ServerError, Spec, StepSpec, why_unhealthy
from hamilocal.supervisor.state_file import SupervisorError, claim, end_stale, write_state

logger = logging.getLogger(__name__)

_HEALTH_FIRST_S = 0.05  # pause between health checks of a starting child; doubles up to the next
_HEALTH_LAST_S = 0.5
_WATCH_S = 5.0  # pause between health checks of a child that is ready


class Phase(StrEnum):
    """Phases of a child's life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    GIVEN_UP = "given up"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Restart policy: pauses double up to a maximum; `max_exits` within `window_s` end it.

    Exits older than `reset_after_s` do not lengthen a pause any more.
    """

    first_pause_s: float = 0.1
    last_pause_s: float = 5.0
    reset_after_s: float = 60.0
    max_exits: int = 20
    window_s: float = 600.0

    def pause_s(self, exits_s: Sequence[float]) -> float | None:
        """Return the pause after the last of these exits (in order); None: do not restart."""
        now_s = exits_s[-1]
        if sum(now_s - at < self.window_s for at in exits_s) >= self.max_exits:
            return None
        recent = sum(now_s - at < self.reset_after_s for at in exits_s)
        return min(self.first_pause_s * 2.0 ** (recent - 1), self.last_pause_s)


@dataclass(slots=True, kw_only=True)
class ChildState:
    """Present state of one child."""

    spec: Spec
    phase: Phase = Phase.WAITING
    restarts: int = 0
    reason: str = ""
    """Reason of its last end."""
    unhealthy: str = ""
    child: Child | None = None
    """Process of the child, if it runs."""
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Supervisor of one local system, whose folder has `state.json` and `logs/`."""

    def __init__(
        self,
        specs: Sequence[Spec],
        *,
        folder: Path,
        info: Mapping[str, object] | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        """Raises: SupervisorError if a name is used twice or `after` names no earlier child."""
        self.folder = folder.absolute()
        self.states: dict[str, ChildState] = {}
        self._info = dict(info or {})
        self._policy = policy or RestartPolicy()
        self._stop = asyncio.Event()
        for spec in specs:
            if spec.name in self.states:
                raise SupervisorError(f"two children are named {spec.name}")
            for name in spec.after:
                if name not in self.states:
                    raise SupervisorError(
                        f"{spec.name} comes after {name}, which is not listed before it"
                    )
            self.states[spec.name] = ChildState(spec=spec)

    @property
    def state_path(self) -> Path:
        """Path of the file that other commands read."""
        return self.folder / "state.json"

    async def run(self) -> None:
        """Run until stopped; return when no child is left.

        Raises:
            SupervisorError: another supervisor runs on this folder.
        """
        await asyncio.to_thread(claim, self.state_path)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            async with asyncio.TaskGroup() as tasks:
                kept = {
                    name: tasks.create_task(self._keep(state), name=name)
                    for name, state in self.states.items()
                }
                await self._stop.wait()
                self._publish()
                await self._end_all(kept)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            self._publish()
            # What children had started and left behind, in sessions of their own.
            await asyncio.to_thread(end_stale, self.state_path)

    def stop(self) -> None:
        """Start to stop everything; `run` returns when that is done."""
        self._stop.set()

    async def _end_all(self, kept: Mapping[str, asyncio.Task[None]]) -> None:
        """Stop children in reverse order: each after those that depend on it have ended."""
        ended: dict[str, asyncio.Task[None]] = {}

        async def end(state: ChildState, dependents: Sequence[asyncio.Task[None]]) -> None:
            await asyncio.gather(*dependents)
            task = kept[state.spec.name]
            task.cancel()
            await asyncio.wait([task])
            self._set(state, Phase.STOPPED)

        for name, state in reversed(self.states.items()):
            dependents = [task for other, task in ended.items() if name in self._after(other)]
            ended[name] = asyncio.create_task(end(state, dependents))
        await asyncio.gather(*ended.values())

    def _after(self, name: str) -> tuple[str, ...]:
        return self.states[name].spec.after

    async def _keep(self, state: ChildState) -> None:
        """Run one child, and restart it when it ends, until its restarts are used up."""
        spec = state.spec
        while missing := [n for n in spec.after if self.states[n].phase is not Phase.READY]:
            await self.states[missing[0]].is_ready.wait()
        exits_s: list[float] = []
        while True:
            self._set(state, Phase.STARTING)
            if isinstance(spec, ChildSpec):
                reason = await self._run_child(state, spec)
            elif (why := await self._do(spec)) is None:
                self._set(state, Phase.READY, "")
                return
            else:
                reason = why
            exits_s = [*exits_s[-self._policy.max_exits :], asyncio.get_running_loop().time()]
            pause_s = self._policy.pause_s(exits_s)
            if pause_s is None:
                count, window_s = self._policy.max_exits, self._policy.window_s
                reason = f"{reason}; given up after {count} ends within {window_s:g} s"
                logger.critical("Process ended", extra={"child": spec.name, "reason": reason})
                self._set(state, Phase.GIVEN_UP, reason)
                return
            logger.warning("Process ended", extra={"child": spec.name, "reason": reason})
            self._set(state, Phase.BACKING_OFF, reason)
            await asyncio.sleep(pause_s)
            state.restarts += 1

    async def _do(self, step: StepSpec) -> str | None:
        """Run the step; return why it failed, or None when it is done."""
        try:
            async with asyncio.timeout(step.start_timeout_s):
                await step.run()
        except Exception as exc:  # a step may do anything; it is retried
            logger.warning("Failed in a step, retrying", extra={"child": step.name}, exc_info=True)
            return str(exc) or type(exc).__name__
        return None

    async def _run_child(self, state: ChildState, spec: ChildSpec) -> str:
        """Start the child process, wait until it has ended, and return the reason."""
        try:
            if spec.prepare is not None:
                await asyncio.to_thread(spec.prepare)
            child = spawn(spec, log_path=self._log_path(spec), system=self.folder)
        except ServerError as exc:
            return str(exc)
        state.child = child
        self._publish()
        end = asyncio.ensure_future(child.wait())
        health = asyncio.create_task(self._watch_health(state, spec, child))
        try:
            await asyncio.wait([end, health], return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                health.result()  # it killed the child, or raises what broke it
            return await asyncio.shield(end)
        except asyncio.CancelledError:
            health.cancel()
            self._set(state, Phase.STOPPING)
            child.terminate()
            await asyncio.wait([end], timeout=spec.stop_grace_s)
            raise
        finally:
            health.cancel()
            if not end.done():
                child.kill()
                await end
            state.child, state.unhealthy = None, ""

    async def _watch_health(self, state: ChildState, spec: ChildSpec, child: Child) -> None:
        """Record the child's health; kill the child if it is not ready within `start_timeout_s`."""
        pause_s = _HEALTH_FIRST_S
        with suppress(TimeoutError):
            async with asyncio.timeout(spec.start_timeout_s):
                while why := await why_unhealthy(spec.health):
                    state.unhealthy = why
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _HEALTH_LAST_S)
                state.unhealthy = ""
                self._set(state, Phase.READY, "")
        if state.phase is not Phase.READY:
            extra = {"child": spec.name, "why": state.unhealthy}
            logger.warning("Killed a process that was not ready in time", extra=extra)
            child.kill()
            return
        while True:
            await asyncio.sleep(_WATCH_S)
            state.unhealthy = await why_unhealthy(spec.health) or ""

    def _set(self, state: ChildState, phase: Phase, reason: str | None = None) -> None:
        state.phase = phase
        if reason is not None:
            state.reason = reason
        if phase is Phase.READY:
            state.is_ready.set()
        else:
            state.is_ready.clear()
        self._publish()

    def _log_path(self, spec: Spec) -> Path:
        return self.folder / "logs" / f"{spec.name}.log"

    def _publish(self) -> None:
        phases = {state.phase for state in self.states.values()}
        if self._stop.is_set():
            phase = "stopped" if phases <= {Phase.STOPPED} else "stopping"
        else:
            phase = "ready" if phases <= {Phase.READY} else "starting"
        me = None if phase == "stopped" else identity_of(os.getpid())
        write_state(
            self.state_path,
            {
                "version": 1,
                "phase": phase,
                "supervisor": None if me is None else asdict(me),
                "services": {name: self._entry(state) for name, state in self.states.items()},
                **self._info,
            },
        )

    def _entry(self, state: ChildState) -> dict[str, object]:
        spec = state.spec
        entry: dict[str, object] = {
            "phase": state.phase.value,
            "restarts": state.restarts,
            "reason": state.reason or state.unhealthy,
        }
        if isinstance(spec, ChildSpec):
            entry["urls"] = dict(spec.urls)
            entry["log"] = str(self._log_path(spec))
            entry["stop_signal"] = int(spec.stop_signal)
        if state.child is not None and state.child.identity is not None:
            entry |= asdict(state.child.identity)
        return entry
