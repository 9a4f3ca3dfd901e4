"""The scheduling loop: watch, schedule one pod at a time, bind in the background.

Events of nodes and pods go into `cluster` and `queue`; each attempt ends in a binding or in a
report. A pod counts on its node from the decision on, so the next pod sees it there although the
binding is still on its way.
"""

import asyncio
import logging
from collections.abc import Sequence

from hamicommon.errors import HamiError
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json

from kubelocal.kubescheduler.cluster import KnownCluster
from kubelocal.kubescheduler.configuration import SchedulerConfiguration
from kubelocal.kubescheduler.cycle import Decider, NoFit
from kubelocal.kubescheduler.events import Reporter
from kubelocal.kubescheduler.extender import Extender, ExtenderError
from kubelocal.kubescheduler.queue import QueuedPod, SchedulingQueue

logger = logging.getLogger(__name__)

_FLUSH_S = 30.0
_LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"


class Unbound(Exception):
    """Error: the API server refused a binding; the message is kube-scheduler's."""


class SchedulingLoop:
    """Schedules the pods of the configured scheduler names."""

    def __init__(
        self, api: KubeApi, configuration: SchedulerConfiguration, extenders: Sequence[Extender]
    ) -> None:
        self._api = api
        self._names = configuration.scheduler_names
        self._extenders = extenders
        self.queue = SchedulingQueue(
            initial_backoff_s=configuration.pod_initial_backoff_seconds,
            max_backoff_s=configuration.pod_max_backoff_seconds,
        )
        self.cluster = KnownCluster()
        self._decider = Decider(
            self.cluster, extenders, percentage=configuration.percentage_of_nodes_to_score
        )
        self._reporter = Reporter(api)
        self._wake = asyncio.Event()
        self._nodes = Informer(
            api, "/api/v1/nodes", on_upsert=self._node_seen, on_delete=self._node_gone
        )
        self._pods = Informer(
            api,
            "/api/v1/pods",
            on_upsert=self._pod_seen,
            on_delete=self._pod_gone,
            fieldSelector=_LIVE_PODS,
        )

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for background in (self._nodes.run(), self._pods.run(), self._reporter.run()):
                tasks.create_task(background)
            await self._nodes.synced.wait()
            await self._pods.synced.wait()
            logger.info("Scheduling pods", extra={"names": sorted(self._names)})
            tasks.create_task(self._flush())
            while True:
                waiting = self.queue.pop(_now())
                if waiting is None:
                    await self._sleep()
                else:
                    await self._schedule(waiting, tasks)

    @property
    def synced(self) -> bool:
        """Whether both lists have been read."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    async def _sleep(self) -> None:
        self._wake.clear()
        wake_at_s = self.queue.wake_at_s()
        try:
            async with asyncio.timeout_at(wake_at_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self.queue.flush(_now())
            self._wake.set()

    async def _schedule(self, waiting: QueuedPod, tasks: asyncio.TaskGroup) -> None:
        pod = waiting.pod
        if pod["metadata"].get("deletionTimestamp"):
            self.queue.done(waiting.uid)
            return
        try:
            node = await self._decider.choose(pod)
        except NoFit as exc:
            self._on_failure(waiting, "Unschedulable", str(exc), by_extender=exc.by_extender)
        except ExtenderError as exc:
            self._on_failure(waiting, "SchedulerError", str(exc))
        else:
            self.cluster.assume(pod, node)
            tasks.create_task(self._bind(waiting, pod, node))

    async def _bind(self, waiting: QueuedPod, pod: Json, node: str) -> None:
        try:
            await self._send_binding(pod, node)
        except (ExtenderError, Unbound) as exc:
            if self.cluster.is_assumed(waiting.uid):
                self.cluster.remove_pod(waiting.uid)
            self._on_failure(waiting, "SchedulerError", str(exc))
            # What the pod had taken on that node is free again.
            self.queue.move_all(_now())
            self._wake.set()
            return
        self.queue.done(waiting.uid)
        self._reporter.report_scheduled(pod, node)

    async def _send_binding(self, pod: Json, node: str) -> None:
        for extender in self._extenders:
            if extender.config.bind_verb and extender.is_interested(pod):
                await extender.bind(pod, node)
                return
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
        except HamiError as exc:
            # kube-scheduler names the plugin (framework/runtime, RunBindPlugins).
            raise Unbound(f'running Bind plugin "DefaultBinder": {exc}') from exc

    def _on_failure(
        self, waiting: QueuedPod, reason: str, message: str, *, by_extender: bool = False
    ) -> None:
        unschedulable = reason == "Unschedulable"
        if not self.queue.record_failure(
            waiting.uid, _now(), unschedulable=unschedulable, by_extender=by_extender
        ):
            return
        logger.info(
            "Failed to schedule a pod",
            extra={"pod_uid": waiting.uid, "attempts": waiting.attempts, "reason": message},
        )
        # The newest state of the pod carries its present condition.
        self._reporter.report_failure(waiting.pod, reason, message)

    def _node_seen(self, new: Json, old: Json | None) -> None:
        self.cluster.set_node(new)
        if old is None or schedulable_part(new) != schedulable_part(old):
            self._move_all()

    def _node_gone(self, node: Json) -> None:
        self.cluster.remove_node(node["metadata"]["name"])

    def _pod_seen(self, new: Json, old: Json | None) -> None:
        uid = new["metadata"]["uid"]
        if new["spec"].get("nodeName"):
            self.cluster.set_pod(new)
            self.queue.remove(uid)
            self.queue.move_refused_by_extenders(_now())
            self._wake.set()
            return
        if new["spec"].get("schedulerName", "default-scheduler") not in self._names:
            return
        if new["metadata"].get("deletionTimestamp") or new["spec"].get("schedulingGates"):
            self.queue.remove(uid)
        elif self.cluster.is_assumed(uid) and not self.queue.is_in_flight(uid):
            return  # bound already; only the news of it is still on its way
        elif old is None:
            self.queue.add(_wire(new), _now())
        else:
            self.queue.update(old, _wire(new), _now())
        self._wake.set()

    def _pod_gone(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        held = bool(pod["spec"].get("nodeName")) or self.cluster.is_assumed(uid)
        self.queue.remove(uid)
        self.cluster.remove_pod(uid)
        if held:
            self._move_all()

    def _move_all(self) -> None:
        self.queue.move_all(_now())
        self._wake.set()


def schedulable_part(node: Json) -> Json:
    """Return the part of a node whose change may make a waiting pod schedulable."""
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
        "spec": node.get("spec"),
        "allocatable": status.get("allocatable"),
        "conditions": {one["type"]: one["status"] for one in status.get("conditions") or ()},
    }


def _wire(pod: Json) -> Json:
    """Return the pod as kube-scheduler sends it: without kind and managed fields."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    return {
        "metadata": metadata,
        **{key: pod[key] for key in ("spec", "status") if key in pod},
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
