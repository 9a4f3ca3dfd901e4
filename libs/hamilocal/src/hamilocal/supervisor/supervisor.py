"""The supervisor: carries out what `lifecycle.decide` returns, and records it in the state file.

In: specs. It starts children in order, watches their health and their end, restarts them, and on
SIGTERM, SIGINT or `stop()` stops them in reverse order. `hamictl up` runs one, detached or not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hamilocal.supervisor import lifecycle
from hamilocal.supervisor.children import Child, identity_of, spawn
from hamilocal.supervisor.lifecycle import ChildState, Phase, RestartPolicy
from hamilocal.supervisor.plan import (
    ChildSpec,
    HealthCheck,
    ServerError,
    Spec,
    StepSpec,
    why_unhealthy,
)
from hamilocal.supervisor.state_file import SupervisorError, claim, end_stale, write_state

logger = logging.getLogger(__name__)

_HEALTH_FIRST_S = 0.05  # pause between health checks of a starting child; doubles up to the next
_HEALTH_LAST_S = 0.5
_WATCH_S = 5.0  # pause between health checks of a child that is ready


class Supervisor:
    """Owner of the children of one local system, whose folder holds `state.json` and `logs/`."""

    def __init__(
        self,
        specs: Sequence[Spec],
        *,
        folder: Path,
        info: Mapping[str, object] | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.info: dict[str, object] = dict(info or {})
        self.states: dict[str, ChildState] = {}
        self.unhealthy: dict[str, str] = {}
        self._policy = policy or RestartPolicy()
        self._specs: dict[str, Spec] = {}
        self._children: dict[str, Child] = {}
        self._stopping = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Condition()
        self.add(*specs)

    @property
    def state_path(self) -> Path:
        """The file that other commands read."""
        return self.folder / "state.json"

    def add(self, *specs: Spec) -> None:
        """Take on more children, before or while running.

        Raises:
            SupervisorError: a name is used twice, or `after` names a child that is not there.
        """
        for spec in specs:
            if spec.name in self._specs:
                raise SupervisorError(f"two children are named {spec.name}")
            missing = [name for name in spec.after if name not in self._specs]
            if missing:
                raise SupervisorError(
                    f"{spec.name} comes after {missing[0]}, which is not listed before it"
                )
            self._specs[spec.name] = spec
            grace_s = spec.stop_grace_s if isinstance(spec, ChildSpec) else 1.0
            self.states[spec.name] = ChildState(
                name=spec.name,
                after=spec.after,
                start_timeout_s=spec.start_timeout_s,
                stop_grace_s=grace_s,
            )
        self._wake.set()

    async def run(self) -> None:
        """Run until stopped; returns when no child is left.

        Raises:
            SupervisorError: another supervisor runs on this folder.
        """
        await asyncio.to_thread(claim, self.state_path)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._loop(tasks)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            self._publish()
            # What children had started and left behind, in sessions of their own.
            await asyncio.to_thread(end_stale, self.state_path)

    def stop(self) -> None:
        """Begin to stop everything; `run` returns when that is done."""
        self._stopping = True
        self._wake.set()

    async def ready(self) -> None:
        """Wait until every child is ready.

        Raises:
            SupervisorError: a child was given up, or the system is stopping.
        """
        async with self._settled:
            await self._settled.wait_for(
                lambda: (
                    self._stopping
                    or lifecycle.all_ready(self.states.values())
                    or any(state.phase is Phase.GIVEN_UP for state in self.states.values())
                )
            )
        for state in self.states.values():
            if state.phase is Phase.GIVEN_UP:
                raise SupervisorError(f"{state.name} does not run: {state.reason}")
        if self._stopping:
            raise SupervisorError("the local system was stopped while it started")

    def pid(self, name: str) -> int | None:
        """The pid of a child, if it runs."""
        child = self._children.get(name)
        return None if child is None else child.pid

    def log_path(self, name: str) -> Path:
        """The file of a child's output."""
        return self.folder / "logs" / f"{name}.log"

    async def _loop(self, tasks: asyncio.TaskGroup) -> None:
        running: dict[str, asyncio.Task[None]] = {}
        while True:
            self._wake.clear()
            now_s = _now()
            actions = lifecycle.decide(self.states, now_s, stopping=self._stopping)
            for name in actions.start:
                self._set(lifecycle.on_start(self.states[name], now_s))
                running[name] = tasks.create_task(self._live(self._specs[name]), name=name)
            for name in actions.terminate:
                self._terminate(name, running.get(name), now_s)
            for name in actions.kill:
                self._kill(name, running.get(name))
            self._publish()
            async with self._settled:
                self._settled.notify_all()
            if self._stopping and lifecycle.all_stopped(self.states.values()):
                return
            await self._sleep_until(actions.wake_at_s)

    async def _sleep_until(self, at_s: float | None) -> None:
        try:
            async with asyncio.timeout(None if at_s is None else max(at_s - _now(), 0.01)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _live(self, spec: Spec) -> None:
        """From the start of one child to its end."""
        try:
            reason = await (self._do(spec) if isinstance(spec, StepSpec) else self._run_child(spec))
        except asyncio.CancelledError:
            reason = "stopped"
        if reason is not None:
            state = lifecycle.on_end(self.states[spec.name], _now(), reason, self._policy)
            level = logging.CRITICAL if state.phase is Phase.GIVEN_UP else logging.WARNING
            if not self._stopping:
                logger.log(level, "child ended", extra={"child": spec.name, "reason": state.reason})
            self._set(state)

    async def _do(self, step: StepSpec) -> str | None:
        try:
            await step.run()
        except Exception as exc:  # a step may do anything; it is tried again
            logger.warning("step failed", extra={"child": step.name}, exc_info=True)
            return str(exc) or type(exc).__name__
        self._set(lifecycle.on_ready(self.states[step.name], _now()))
        return None

    async def _run_child(self, spec: ChildSpec) -> str:
        try:
            if spec.prepare is not None:
                await asyncio.to_thread(spec.prepare)
            child = spawn(spec, log_path=self.log_path(spec.name), system=self.folder)
        except ServerError as exc:
            return str(exc)
        self._children[spec.name] = child
        self._publish()
        try:
            async with asyncio.TaskGroup() as tasks:
                health = tasks.create_task(self._watch_health(spec.name, spec.health))
                reason = await _end_of(child)
                health.cancel()
        finally:
            self._children.pop(spec.name, None)
            self.unhealthy.pop(spec.name, None)
        return reason

    async def _watch_health(self, name: str, health: HealthCheck | None) -> None:
        pause_s = _HEALTH_FIRST_S
        while True:
            why = await why_unhealthy(health)
            if why is None:
                self.unhealthy.pop(name, None)
                if self.states[name].phase is Phase.STARTING:
                    self._set(lifecycle.on_ready(self.states[name], _now()))
                pause_s = _WATCH_S
            else:
                self.unhealthy[name] = why
                pause_s = min(pause_s * 2, _HEALTH_LAST_S)
            await asyncio.sleep(pause_s)

    def _terminate(self, name: str, task: asyncio.Task[None] | None, now_s: float) -> None:
        child = self._children.get(name)
        state = self.states[name]
        if child is not None:
            child.terminate()
            self._set(lifecycle.on_stop(state, now_s))
            return
        if task is not None and not task.done():
            task.cancel()
        self._set(lifecycle.on_stop(state, now_s))
        if self.states[name].phase is Phase.STOPPING and (task is None or task.done()):
            self._set(lifecycle.on_end(self.states[name], now_s, "", self._policy))

    def _kill(self, name: str, task: asyncio.Task[None] | None) -> None:
        child = self._children.get(name)
        if child is not None:
            logger.warning(
                "child killed", extra={"child": name, "why": self.unhealthy.get(name, "too slow")}
            )
            child.kill()
        elif task is not None:
            task.cancel()

    def _set(self, state: ChildState) -> None:
        self.states[state.name] = state
        self._wake.set()

    def _publish(self) -> None:
        phase = self._phase()
        me = None if phase == "stopped" else identity_of(os.getpid())
        write_state(
            self.state_path,
            {
                "version": 1,
                "phase": phase,
                "supervisor": None if me is None else asdict(me),
                "services": {
                    name: service_entry(
                        spec,
                        self.states[name],
                        self._children.get(name),
                        unhealthy=self.unhealthy.get(name, ""),
                        log_path=self.log_path(name),
                    )
                    for name, spec in self._specs.items()
                },
                **self.info,
            },
        )

    def _phase(self) -> str:
        if self._stopping:
            stopped = lifecycle.all_stopped(self.states.values())
            return "stopped" if stopped else "stopping"
        return "ready" if lifecycle.all_ready(self.states.values()) else "starting"


async def _end_of(child: Child) -> str:
    """How the child ended; if nobody waits for that any more, it is killed."""
    end = asyncio.ensure_future(child.wait())
    try:
        return await asyncio.shield(end)
    except asyncio.CancelledError:
        child.kill()
        await end
        raise


def _now() -> float:
    return asyncio.get_running_loop().time()


def service_entry(
    spec: Spec, state: ChildState, child: Child | None, *, unhealthy: str, log_path: Path
) -> dict[str, object]:
    """One child; `child` is None while it has no process."""
    entry: dict[str, object] = {
        "phase": state.phase.value,
        "restarts": state.restarts,
        "reason": state.reason or unhealthy,
    }
    if isinstance(spec, ChildSpec):
        entry["urls"] = dict(spec.urls)
        entry["log"] = str(log_path)
        entry["stop_signal"] = int(spec.stop_signal)
    if child is not None and child.identity is not None:
        entry |= asdict(child.identity)
    return entry
