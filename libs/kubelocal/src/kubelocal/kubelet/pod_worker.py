"""Run one pod from admission to the removal of its object, and report its status.

Init containers run in order, sidecars keep running, then the regular containers; a stop request
ends them with a grace. `kubelet.py` owns the workers; `containers/worker.py` runs each container.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime

from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec, pod_status
from kubelocal.kubelet.admission import Rejection
from kubelocal.kubelet.containers.runtime import RunningContainer, stop_all
from kubelocal.kubelet.containers.worker import ContainerWorker, Machine

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.2
RETRY_LAST_S = 5.0
# The server answers 409 for another uid (permanently) and for concurrent writes by others.
MAX_CONFLICTS = 3


class StatusReporter:
    """Send one pod's status to the API server."""

    def __init__(self, api: KubeApi, pod: Json) -> None:
        self._api = api
        self._path = f"{pod_spec.path(pod)}/status"
        self._uid = pod_spec.uid(pod)
        self._wanted: Json | None = None
        self._sent: Json | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def conditions(self) -> list[Json]:
        """Conditions of the newest status."""
        return list((self._wanted or {}).get("conditions") or [])

    def set(self, status: Json) -> None:
        """Send this status."""
        if status != self._wanted:
            self._wanted = status
            self._idle.clear()
            self._wake.set()

    async def wait_until_flushed(self) -> None:
        """Return when the newest status has been sent, or can't be sent any more."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send status changes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._send()
            if not self._wake.is_set():
                self._idle.set()

    async def _send(self) -> None:
        retry_s, conflicts = RETRY_FIRST_S, 0
        while self._wanted != self._sent:
            status = self._wanted
            # The uid prevents a write to another pod of the same name.
            body = {"metadata": {"uid": self._uid}, "status": status}
            try:
                await self._api.patch(self._path, body, PatchType.STRATEGIC)
                self._sent = status
            except NotFound:
                return
            except HamiError as exc:
                conflicts += isinstance(exc, Conflict)
                if conflicts > MAX_CONFLICTS:
                    return
                logger.warning(
                    "Failed to send a pod status", extra={"path": self._path, "error": str(exc)}
                )
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_LAST_S)


DELETE_RETRY_S = 1.0


class PodWorker:
    """Worker of a pod; with `rejection` the pod is shown as rejected until its deletion.

    `active` is whether the pod still holds its devices.
    """

    def __init__(
        self, machine: Machine, api: KubeApi, pod: Json, *, rejection: Rejection | None = None
    ) -> None:
        self._machine = machine
        self._api = api
        self._rejection = rejection
        self._stop = asyncio.Event()
        self._grace_s = pod_spec.DEFAULT_GRACE_S
        self._gone = False
        self._stopping: list[RunningContainer] = []
        self._started_at = datetime.now(UTC)
        self._reporter = StatusReporter(api, pod)
        self._previous = list((pod.get("status") or {}).get("conditions") or [])
        self._workers: dict[str, ContainerWorker] = {}
        self.pod = pod
        self.active = rejection is None and not pod_spec.is_terminal(pod)

    def request_stop(self, grace_s: float, *, gone: bool = False) -> None:
        """Stop the pod; a later request may shorten the grace period.

        `gone`: its object is gone.
        """
        self._gone |= gone
        if self._stop.is_set() and grace_s < self._grace_s:
            for container in self._stopping:
                asyncio.get_running_loop().call_later(grace_s, container.kill)
        self._grace_s = min(self._grace_s, grace_s) if self._stop.is_set() else grace_s
        self._stop.set()

    async def run(self) -> None:
        """Run until the pod's object and folder are gone."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    reporting = tasks.create_task(self._reporter.run())
                    await self._live()
                    reporting.cancel()
                return
            except Exception:  # the outermost loop of a pod
                logger.exception(
                    "Failed to run a pod worker", extra={"pod": pod_spec.name(self.pod)}
                )
                await asyncio.sleep(self._machine.sync_retry_s)
            finally:
                self._release()

    async def _live(self) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        if self._rejection is not None:
            self._show_rejection(self._rejection)
        elif self.active and not self._stop.is_set():
            working = asyncio.create_task(self._run_containers())
            await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
            if not working.cancelled():
                working.result()
                self.active = False
        await stopped
        await self._terminate()
        self.active = False
        if not self._gone:
            await self._reporter.wait_until_flushed()
            await self._delete_object()
        await self._machine.runtime.forget(pod_spec.uid(self.pod))

    def _show_rejection(self, rejection: Rejection) -> None:
        self._machine.recorder.record(self.pod, "Warning", rejection.reason, rejection.message)
        self._reporter.set(
            pod_status.rejected_status(rejection.reason, rejection.message, now=self._started_at)
        )

    async def _run_containers(self) -> None:
        """Run the containers; return when none runs or will run again."""
        self._workers = {
            spec["name"]: ContainerWorker(
                self._machine, self.pod, spec, on_change=self._show_containers
            )
            for spec in pod_spec.all_containers(self.pod)
        }
        self._show_containers()
        sidecars: list[asyncio.Task[int]] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                if await self._run_init_containers(tasks, sidecars):
                    await asyncio.gather(
                        *(
                            tasks.create_task(self._workers[spec["name"]].run())
                            for spec in pod_spec.app_containers(self.pod)
                        )
                    )
                for sidecar in sidecars:
                    sidecar.cancel()
        except BaseExceptionGroup as group:  # as without a group, the first is the cause
            raise group.exceptions[0] from None
        await self._stop_containers(pod_spec.grace_s(self.pod))

    async def _run_init_containers(
        self, tasks: asyncio.TaskGroup, sidecars: list[asyncio.Task[int]]
    ) -> bool:
        """Run the init containers; return False if one failed permanently."""
        for spec in pod_spec.init_containers(self.pod):
            worker = self._workers[spec["name"]]
            if pod_spec.is_sidecar(self.pod, spec):
                sidecars.append(tasks.create_task(worker.run()))
                await worker.started.wait()
            elif await worker.run() != 0:
                return False
        return True

    def _show_containers(self) -> None:
        self._reporter.set(
            pod_status.compute(
                self.pod,
                {name: worker.state for name, worker in self._workers.items()},
                started_at=self._started_at,
                now=datetime.now(UTC),
                previous=self._reporter.conditions or self._previous,
            )
        )

    async def _terminate(self) -> None:
        if self._workers:
            await self._stop_containers(self._grace_s)
            return
        # This process ran none: containers may be left from an earlier kubelet.
        self._stopping = list(self._machine.runtime.running_of(pod_spec.uid(self.pod)))
        await stop_all(self._stopping, self._grace_s)

    async def _stop_containers(self, grace_s: float) -> None:
        alive = [worker for worker in self._workers.values() if worker.running is not None]
        running = [worker.running for worker in alive if worker.running is not None]
        for worker in alive:
            self._machine.recorder.record(
                self.pod,
                "Normal",
                "Killing",
                f"Stopping container {worker.name}",
                container=worker.name,
            )
        self._stopping = running
        await stop_all(running, grace_s)
        for worker, container in zip(alive, running, strict=True):
            worker.note_end(await container.wait())

    async def _delete_object(self) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod_spec.uid(self.pod)},
        }
        while not self._gone:
            try:
                await self._api.delete(pod_spec.path(self.pod), options)
                return
            except (NotFound, Conflict):
                return
            except HamiError as exc:
                logger.warning("Failed to delete a pod", extra={"error": str(exc)})
                await asyncio.sleep(DELETE_RETRY_S)

    def _release(self) -> None:
        for worker in self._workers.values():
            if worker.running is not None:
                with suppress(RuntimeError):
                    worker.running.release()
