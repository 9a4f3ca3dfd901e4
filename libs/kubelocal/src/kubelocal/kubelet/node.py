"""Write the Node object and its Lease, and keep them current.

The status is sent when it changes (above all a device plugin's list) and every few minutes. In
between the Lease is the heartbeat, because every needless Node update wakes waiting pods.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_status
from kubelocal.kubelet.devices.state import DeviceCounts

# kubectl and schedulers parse it as a semantic version: behaviour of 1.20, made by hamictl.
KUBELET_VERSION = "v1.20.2+hamictl"
MOUNTS_ANNOTATION = "hamictl.io/mounts"
ROOT_ANNOTATION = "hamictl.io/kubelet-root"
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
# The kubelet's nodeLeaseDurationSeconds.
LEASE_DURATION_S = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Constant facts about the node; amounts are Kubernetes quantities."""

    name: str
    cpu: str
    memory: str
    pods: int
    mounts: str
    root: str


def node_labels(identity: NodeIdentity) -> dict[str, str]:
    """Return the labels that every kubelet sets on its Node."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": machine,
    }


def node_metadata(identity: NodeIdentity) -> Json:
    """Return our metadata; labels and annotations of other writers are not changed."""
    return {
        "name": identity.name,
        "labels": node_labels(identity),
        "annotations": {MOUNTS_ANNOTATION: identity.mounts, ROOT_ANNOTATION: identity.root},
    }


def resources(identity: NodeIdentity) -> dict[str, str]:
    """Return the machine's capacity, which is all allocatable."""
    return {
        "cpu": identity.cpu,
        "memory": identity.memory,
        "pods": str(identity.pods),
        "ephemeral-storage": "100Gi",
    }


def allocatable(identity: NodeIdentity, devices: Mapping[str, DeviceCounts]) -> dict[str, str]:
    """Return the amounts that pods may request now."""
    return resources(identity) | {r: str(c.allocatable) for r, c in devices.items()}


def node_status(
    identity: NodeIdentity, devices: Mapping[str, DeviceCounts], *, ready_since: datetime
) -> Json:
    """Return the status without heartbeat times, so that two of them can be compared."""
    return {
        "capacity": resources(identity) | {r: str(c.capacity) for r, c in devices.items()},
        "allocatable": allocatable(identity, devices),
        "conditions": [
            _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", ready_since),
            _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", ready_since),
            _condition("PIDPressure", "False", "KubeletHasSufficientPID", ready_since),
            _condition("Ready", "True", "KubeletReady", ready_since),
        ],
        "addresses": [
            {"type": "InternalIP", "address": pod_status.HOST_IP},
            {"type": "Hostname", "address": identity.name},
        ],
        "nodeInfo": {
            "machineID": identity.name,
            "systemUUID": identity.name,
            "bootID": identity.name,
            "kernelVersion": platform.release(),
            "osImage": "local processes",
            "containerRuntimeVersion": "hami-launcher://1",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": KUBELET_VERSION,
            "operatingSystem": "linux",
            "architecture": node_labels(identity)["kubernetes.io/arch"],
        },
    }


def _condition(kind: str, verdict: str, reason: str, since: datetime) -> Json:
    return {
        "type": kind,
        "status": verdict,
        "reason": reason,
        "message": f"{kind} as this simulated kubelet sees it",
        "lastTransitionTime": pod_status.stamp(since),
    }


def with_heartbeat(state: Json, now: datetime) -> Json:
    """Return the status with its time of report."""
    beats = [{**c, "lastHeartbeatTime": pod_status.stamp(now)} for c in state["conditions"]]
    return {**state, "conditions": beats}


def node_lease(identity: NodeIdentity, owner_uid: str, now: datetime) -> Json:
    """Return the Lease that shows that this kubelet lives."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": identity.name,
            "namespace": "kube-node-lease",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": identity.name, "uid": owner_uid}
            ],
        },
        "spec": {
            "holderIdentity": identity.name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


logger = logging.getLogger(__name__)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The kubelet renews its Lease each quarter of its duration, and repeats an unchanged status
# (nodeStatusReportFrequency) after five minutes.
RENEW_S = 10.0
REPEAT_STATUS_S = 300.0
# Device lists come in bursts; one report covers them.
SETTLE_S = 0.05
RETRY_S = 1.0


class NodeReporter:
    """Register one Node and report its state; `report_soon()` asks for a report now."""

    def __init__(
        self,
        api: KubeApi,
        identity: NodeIdentity,
        devices: Callable[[], Mapping[str, DeviceCounts]],
    ) -> None:
        self._api = api
        self._identity = identity
        self._devices = devices
        self._path = f"/api/v1/nodes/{identity.name}"
        self._wake = asyncio.Event()
        self._started_at = datetime.now(UTC)
        self._sent: Json = {}
        self._sent_at = self._started_at
        self._uid = ""
        self.labels: dict[str, str] = node_labels(identity)
        self.registered = asyncio.Event()

    def report_soon(self) -> None:
        """Report soon, because devices may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled, retrying while the API server is unavailable."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_forever())
            tasks.create_task(self._renew_forever())

    async def _report_forever(self) -> None:
        while True:
            try:
                if not self._uid:
                    await self._register()
                await self._report()
                self.registered.set()
                timeout_s = RENEW_S
            except HamiError as exc:
                # A deleted Node stays deleted until this kubelet starts again.
                logger.warning("Failed to report the node status", extra={"error": str(exc)})
                timeout_s = RENEW_S if isinstance(exc, NotFound) else RETRY_S
            await self._pause(timeout_s)

    async def _pause(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
            await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            pass
        self._wake.clear()

    async def _register(self) -> None:
        metadata = node_metadata(self._identity)
        try:
            node = await self._api.create(
                "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            )
            logger.info("Registered the node", extra={"node": self._identity.name})
        except Conflict:
            ours = {"labels": metadata["labels"], "annotations": metadata["annotations"]}
            node = await self._api.patch(self._path, {"metadata": ours})
        self._uid = node["metadata"]["uid"]
        self.labels = dict(node["metadata"].get("labels") or {})

    async def _report(self) -> None:
        now = datetime.now(UTC)
        state = node_status(self._identity, self._devices(), ready_since=self._started_at)
        if state == self._sent and (now - self._sent_at).total_seconds() < REPEAT_STATUS_S:
            return
        node = await self._api.patch(
            f"{self._path}/status",
            {"status": with_heartbeat(state, now)},
            PatchType.STRATEGIC,
        )
        self._sent, self._sent_at = state, now
        self.labels = dict(node["metadata"].get("labels") or {})
        await self._untaint(node)

    async def _untaint(self, node: Json) -> None:
        """Remove the taint with which admission marks a new Node as not ready.

        Without a node controller (a bare API server) no other process would remove it.
        """
        taints = node["spec"].get("taints") or []
        others = [taint for taint in taints if taint["key"] != NOT_READY_TAINT]
        if len(others) == len(taints):
            return
        version = node["metadata"]["resourceVersion"]
        try:
            await self._api.patch(
                self._path,
                {"metadata": {"resourceVersion": version}, "spec": {"taints": others or None}},
            )
        except Conflict:
            self._sent = {}
            self._wake.set()

    async def _renew_forever(self) -> None:
        await self.registered.wait()
        while True:
            try:
                await self._renew()
            except HamiError as exc:
                logger.warning("Failed to renew the lease", extra={"error": str(exc)})
            await asyncio.sleep(RENEW_S)

    async def _renew(self) -> None:
        body = node_lease(self._identity, self._uid, datetime.now(UTC))
        try:
            await self._api.patch(f"{LEASES}/{self._identity.name}", {"spec": body["spec"]})
        except NotFound:
            await self._create_lease(body)

    async def _create_lease(self, body: Json) -> None:
        try:
            await self._api.create(LEASES, body)
        except NotFound:
            namespace = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "kube-node-lease"},
            }
            await self._api.create("/api/v1/namespaces", namespace)
            await self._api.create(LEASES, body)
