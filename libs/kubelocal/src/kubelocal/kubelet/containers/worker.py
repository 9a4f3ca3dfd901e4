"""Run one container of a pod: pre-start calls, start, wait, back-off, restart.

`pod_worker.py` decides when this begins and ends; the pod's status is made from the state of this
worker. It survives a kill of the kubelet, because `run` continues from the launcher's files. The
back-off is the kubelet's own for crash loops.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hamicommon.errors import HamiError
from hamicommon.k8s.types import Json

from kubelocal.events import EventRecorder, EventType
from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.containers import environment
from kubelocal.kubelet.containers.environment import Driver, MountMode
from kubelocal.kubelet.containers.runtime import (
    ContainerExit,
    Launch,
    ProcessRuntime,
    RunningContainer,
    StartFailed,
    container_id,
)
from kubelocal.kubelet.devices import cdi
from kubelocal.kubelet.devices.allocator import DeviceAllocator
from kubelocal.kubelet.devices.state import AdmissionError, AllocateAnswer, PluginError
from kubelocal.kubelet.pod_status import ContainerState, Running, Terminated, WaitingState


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffRule:
    """Parameters of restarts, in seconds; tests use smaller ones than the kubelet's."""

    initial_s: float = 10.0
    longest_s: float = 300.0

    @property
    def forget_after_s(self) -> float:
        """Running time after which a container restarts without back-off."""
        return 2 * self.longest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBackoff:
    """State of one container's back-off."""

    wait_s: float = 0.0
    ended_at_s: float | None = None

    def after_end(self, rule: BackoffRule, *, ran_s: float, ended_at_s: float) -> RestartBackoff:
        """Record an end: the first restart is immediate, then the pause doubles."""
        if self.ended_at_s is None or ran_s > rule.forget_after_s:
            return RestartBackoff(wait_s=0.0, ended_at_s=ended_at_s)
        wait_s = max(rule.initial_s, min(self.wait_s * 2, rule.longest_s))
        return RestartBackoff(wait_s=min(wait_s, rule.longest_s), ended_at_s=ended_at_s)

    def restart_at_s(self) -> float:
        """Return when the container may start."""
        return (self.ended_at_s or 0.0) + self.wait_s


def restarts(restart_policy: str, *, exit_code: int, sidecar: bool, init: bool) -> bool:
    """Return whether an ended container is started again."""
    if sidecar:
        return True
    if exit_code == 0:
        return restart_policy == "Always" and not init
    return restart_policy != "Never"


logger = logging.getLogger(__name__)

# Exit code that the launcher writes for a container that could not be started.
START_ERROR = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Parts of the node that all containers use."""

    node: str
    allocator: DeviceAllocator
    runtime: ProcessRuntime
    recorder: EventRecorder
    driver: Driver
    mode: MountMode
    pathmap_library: Path
    backoff: BackoffRule
    cdi_dir: Path | None
    """Folder of CDI files; None: CDI is not supported."""
    sync_retry_s: float
    """Pause after a start that could not be attempted; the kubelet's is 10 to 15 s."""


class ContainerWorker:
    """Runs a container; `state` is the state for users, `running` the process if there is one."""

    def __init__(
        self, machine: Machine, pod: Json, spec: Json, *, on_change: Callable[[], None]
    ) -> None:
        self._machine = machine
        self._pod = pod
        self._spec = spec
        self._name: str = spec["name"]
        self._uid = pod_spec.uid(pod)
        self._init = pod_spec.is_ordinary_init(pod, spec)
        self._sidecar = pod_spec.is_sidecar(pod, spec)
        self._on_change = on_change
        self._backoff = RestartBackoff()
        self._attempt = 0
        waits_for_init = bool(pod_spec.init_containers(pod)) and not (self._init or self._sidecar)
        self.state = ContainerState(
            state=WaitingState(reason="PodInitializing" if waits_for_init else "ContainerCreating")
        )
        self.running: RunningContainer | None = None
        self.started = asyncio.Event()

    @property
    def name(self) -> str:
        """Name of the container."""
        return self._name

    async def run(self) -> int:
        """Run the container as the restart policy asks; return its last exit code."""
        ended = self._recover()
        while True:
            if ended is None and self.running is None:
                ended = await self._start()
            if self.running is not None:
                ended = await self.running.wait()
            assert ended is not None
            self.note_end(ended)
            policy = pod_spec.restart_policy(self._pod)
            if not restarts(
                policy, exit_code=ended.exit_code, sidecar=self._sidecar, init=self._init
            ):
                return ended.exit_code
            await self._back_off()
            self._attempt += 1
            ended = None

    def _recover(self) -> ContainerExit | None:
        recovered = self._machine.runtime.recover(self._uid, self._name)
        if recovered is None:
            return None
        self._attempt = recovered.attempt
        if recovered.previous is not None:
            last = _terminated_state(recovered.previous, None)
            self.state = replace(self.state, last=last)
        self._begin(recovered.running, recovered.started_at)
        return recovered.ended

    def _begin(self, running: RunningContainer | None, started_at: datetime) -> None:
        self.running = running
        self.state = ContainerState(
            state=Running(started_at=started_at),
            last=self.state.last,
            restart_count=self._attempt,
            container_id=f"hami://{container_id(self._uid, self._name, self._attempt)}",
        )
        self.started.set()
        self._on_change()

    def note_end(self, ended: ContainerExit) -> None:
        """Record an end in the state and in the back-off."""
        self.running = None
        began = self.state.state
        started_at = began.started_at if isinstance(began, Running) else None
        ran_s = (ended.finished_at - started_at).total_seconds() if started_at else 0.0
        self._backoff = self._backoff.after_end(
            self._machine.backoff, ran_s=ran_s, ended_at_s=time.monotonic()
        )
        self.state = replace(
            self.state, state=_terminated_state(ended, started_at), restart_count=self._attempt
        )
        self._on_change()

    async def _back_off(self) -> None:
        assert isinstance(self.state.state, Terminated)
        self.state = replace(self.state, last=self.state.state)
        wait_s = self._backoff.restart_at_s() - time.monotonic()
        if wait_s <= 0:
            return
        message = (
            f"back-off {self._backoff.wait_s:g}s restarting failed container={self._name} "
            f"pod={pod_spec.name(self._pod)}_{pod_spec.namespace(self._pod)}({self._uid})"
        )
        self._wait("CrashLoopBackOff", message)
        self._event("Warning", "BackOff", "Back-off restarting failed container")
        await asyncio.sleep(wait_s)

    def _wait(self, reason: str, message: str) -> None:
        self.state = replace(self.state, state=WaitingState(reason=reason, message=message))
        self._on_change()

    def _event(self, kind: EventType, reason: str, message: str) -> None:
        self._machine.recorder.record(self._pod, kind, reason, message, container=self._name)

    async def _start(self) -> ContainerExit | None:
        """Start the container; return an Ended if its program could not be run."""
        while True:
            try:
                answer = await self._machine.allocator.pre_start(self._pod, self._spec)
                launch = await asyncio.to_thread(self._launch, answer)
                break
            except (PluginError, AdmissionError, HamiError, OSError) as exc:
                self._wait("CreateContainerConfigError", str(exc))
                self._event("Warning", "Failed", f"Error: {exc}")
                await asyncio.sleep(self._machine.sync_retry_s)
        # A start that has begun is completed, so that no process is left without an owner.
        starting = asyncio.ensure_future(
            self._machine.runtime.start(self._uid, self._name, self._attempt, launch)
        )
        try:
            running = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:
                self._begin(starting.result(), starting.result().started_at)
            raise
        except StartFailed as failure:
            self._event("Warning", "Failed", f"Error: {failure}")
            return failure.ended
        self._begin(running, running.started_at)
        self._event("Normal", "Started", self._started_message())
        return None

    def _started_message(self) -> str:
        if self._spec.get("command"):
            return f"Started container {self._name}"
        return (
            f"Started container {self._name}: it has no command, and images are not run here, "
            "so it sleeps until it is stopped"
        )

    def _launch(self, answer: AllocateAnswer) -> Launch:
        machine, pod_uid = self._machine, self._uid
        edits = cdi.edits_of(cdi.names_of(answer), machine.cdi_dir)
        answer = replace(
            answer, mounts=answer.mounts + edits.mounts, nodes=answer.nodes + edits.nodes
        )
        env = environment.environment(
            self._pod, self._spec, answer, node=machine.node, driver=machine.driver, edits=edits
        )
        volumes = environment.volumes(
            self._pod, self._spec, volumes_dir=machine.runtime.pod_dir(pod_uid) / "volumes"
        )
        for directory in volumes.directories:
            directory.mkdir(parents=True, exist_ok=True)
        mounts = environment.order_mounts(answer, volumes.mounts)
        argv = environment.command_line(self._spec, env)
        namespace = machine.mode is MountMode.NAMESPACE
        if not namespace:
            env |= environment.pathmap_env(
                env, mounts, pathmap_library=machine.pathmap_library, read_text=Path.read_text
            )
        return Launch(
            argv=argv,
            env=env,
            cwd=self._spec.get("workingDir") or "/",
            log=machine.runtime.log_file(pod_uid, self._name),
            mounts=mounts,
            rootfs=machine.runtime.rootfs(pod_uid, self._name) if namespace else None,
        )


def _terminated_state(ended: ContainerExit, started_at: datetime | None) -> Terminated:
    if ended.exit_code == START_ERROR and ended.message:
        reason = "StartError"
    else:
        reason = "Completed" if ended.exit_code == 0 else "Error"
    return Terminated(
        exit_code=ended.exit_code,
        reason=reason,
        message=ended.message,
        started_at=started_at or (None if ended.message else datetime.now(UTC)),
        finished_at=ended.finished_at,
    )
