"""One node pool of four cards, of Cluster Autoscaler or Karpenter, and kubelets for its nodes.

Both programs are built outside the repository with their kwok providers, which make Node objects
and nothing else. A thread stands in for kubelets and HAMi's device plugins (`Kubelets`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import yaml
from hamicommon.k8s.types import Json
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.e2e.system import System, wait
from tests.processes import http_ready, running

POOL = "a100x4"
CARD_MIB = 40_000
CARDS = 4
CPU, MEMORY = "96", "700Gi"
NOT_READY: Json = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
MERGE = {"content-type": "application/merge-patch+json"}
NAMES = ("cluster-autoscaler", "karpenter")


def cards_of(node: str, *, count: int = CARDS, model: str = "NVIDIA A100", slots: int = 10) -> str:
    """The annotation that HAMi's device plugin writes on its node."""
    return json.dumps(
        [
            {
                "id": f"GPU-{node}-{index}",
                "index": index,
                "count": slots,
                "devmem": CARD_MIB,
                "devcore": 100,
                "type": model,
                "mode": "hami-core",
                "health": True,
            }
            for index in range(count)
        ]
    )


class Kubelets:
    """Stand-ins for the kubelets and device plugins of all nodes, in a thread."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self._ending = threading.Event()
        self.count, self.model = CARDS, "NVIDIA A100"
        """Cards of the nodes that come."""
        self.slots = 10
        self.is_driver_installed = True
        self.extra: Mapping[str, str] = {}
        """More resources that nodes list."""
        self.problems: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the block."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()
        assert self.problems == []

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            try:
                for node in self._api.get("/api/v1/nodes").json()["items"]:
                    self._serve(node)
                for pod in self._api.get("/api/v1/pods").json()["items"]:
                    self._follow(pod)
            except httpx.TransportError as exc:
                self.problems.append(str(exc))

    def _serve(self, node: Json) -> None:
        metadata, path = node["metadata"], f"/api/v1/nodes/{node['metadata']['name']}"
        annotations = metadata.get("annotations") or {}
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
        if conditions.get("Ready") != "True":
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            amounts = {"cpu": CPU, "memory": MEMORY, "pods": "300"}
            amounts |= {"nvidia.com/gpu": str(CARDS * self.slots), **self.extra}
            status = {"conditions": [ready], "capacity": amounts, "allocatable": amounts}
            self._patch(f"{path}/status", {"status": status})
            name = metadata.get("labels", {}).get("kubernetes.io/hostname", metadata["name"])
            kept = [
                each for each in node["spec"].get("taints", ()) if each["key"] != NOT_READY["key"]
            ]
            self._patch(
                path,
                {
                    "metadata": {"labels": {"kubernetes.io/hostname": name}},
                    "spec": {"taints": kept},
                },
            )
        if self.is_driver_installed and "hami.io/node-nvidia-register" not in annotations:
            written = cards_of(
                metadata["name"], count=self.count, model=self.model, slots=self.slots
            )
            self._patch(
                path, {"metadata": {"annotations": {"hami.io/node-nvidia-register": written}}}
            )
        if "Requesting" in annotations.get("hami.io/node-handshake", ""):
            answer = {"hami.io/node-handshake": "Reported"}
            self._patch(path, {"metadata": {"annotations": answer}})

    def _follow(self, pod: Json) -> None:
        metadata, status = pod["metadata"], pod["status"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if not pod["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in metadata:
            self._api.request("DELETE", path, json={"gracePeriodSeconds": 0})
        elif status.get("phase") == "Pending":
            annotations = metadata.get("annotations") or {}
            if "hami.io/bind-phase" in annotations:
                self._patch(path, {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}})
            states = [
                {
                    "name": each["name"],
                    "image": each["image"],
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": metadata["creationTimestamp"]}},
                }
                for each in pod["spec"]["containers"]
            ]
            shown = {"phase": "Running", "containerStatuses": states}
            self._patch(f"{path}/status", {"status": shown})

    def _patch(self, path: str, body: Json) -> None:
        answer = self._api.patch(path, json=body, headers=MERGE)
        # Objects go and change at any moment.
        if answer.status_code not in (200, 404, 409):
            self.problems.append(f"{path}: {answer.text}")


def node_template() -> Json:
    """A node of the pool as Cluster Autoscaler's provider makes it."""
    amounts = {"cpu": CPU, "memory": MEMORY, "pods": "110", "nvidia.com/gpu": "40"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": POOL,
            "labels": {"pool": POOL, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            "annotations": {
                "cluster-autoscaler.kwok.nodegroup/min-count": "0",
                "cluster-autoscaler.kwok.nodegroup/max-count": "20",
                "cluster-autoscaler.kwok.nodegroup/desired-count": "0",
            },
        },
        "spec": {"taints": [NOT_READY]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


@contextmanager
def cluster_autoscaler(
    system: System, folder: Path, kubeconfig: Path, *, resources: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Cluster Autoscaler with the pool, which has no node yet.

    `resources`: more of what the template of a node lists.
    """
    template = node_template()
    template["status"]["allocatable"] |= resources or {}
    template["status"]["capacity"] |= resources or {}
    settings = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": "pool"},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
        "kwok": {},
    }
    nodes = {"apiVersion": "v1", "kind": "List", "items": [template]}
    for name, key, value in (
        ("kwok-provider-config", "config", settings),
        ("kwok-provider-templates", "templates", nodes),
    ):
        body = {"metadata": {"name": name}, "data": {key: yaml.safe_dump(value)}}
        create(system, "/api/v1/namespaces/default/configmaps", body)
    port = free_port()
    options = {
        "cloud-provider": "kwok",
        "kubeconfig": str(kubeconfig),
        "namespace": "default",
        "leader-elect": "false",
        "address": f"{LOOPBACK}:{port}",
        "scan-interval": "2s",
        "scale-down-unneeded-time": "8s",
        "scale-down-delay-after-add": "5s",
        "scale-down-delay-after-delete": "1s",
        "scale-down-unready-time": "20s",
        "unremovable-node-recheck-timeout": "2s",
        "v": "4",
    }
    plan = ServerPlan(
        name="cluster-autoscaler",
        argv=(
            str(folder / "cluster-autoscaler"),
            *(f"--{name}={value}" for name, value in options.items()),
        ),
        cwd=system.folder,
        log_path=system.folder / "cluster-autoscaler.log",
        url=f"http://{LOOPBACK}:{port}",
        port=port,
        probe=partial(http_ready, f"http://{LOOPBACK}:{port}/health-check"),
        env={
            "KWOK_PROVIDER_MODE": "local",
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": "default",
        },
    )
    with running(plan, die_with_parent=True):
        yield


@contextmanager
def karpenter(system: System, folder: Path, kubeconfig: Path) -> Iterator[None]:
    """Karpenter with the pool as a NodePool."""
    for file in sorted((folder / "crds").glob("*.yaml")):
        for body in yaml.safe_load_all(file.read_text()):
            create(system, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    for served in ("karpenter.kwok.sh/v1alpha1/kwoknodeclasses", "karpenter.sh/v1/nodepools"):
        wait(lambda path=f"/apis/{served}": system.api.get(path).is_success, f"{served} served")
    create(
        system,
        "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses",
        {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": "default"},
        },
    )
    create(
        system,
        "/apis/karpenter.sh/v1/nodepools",
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": POOL},
            "spec": {
                "template": {
                    "metadata": {"labels": {"pool": POOL}},
                    "spec": {
                        "requirements": [],
                        "nodeClassRef": {
                            "group": "karpenter.kwok.sh",
                            "kind": "KWOKNodeClass",
                            "name": "default",
                        },
                        "expireAfter": "Never",
                    },
                },
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5s"},
            },
        },
    )
    types = system.folder / "instance-types.json"
    offering = {
        "Price": 12.0,
        "Available": True,
        "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
        ],
    }
    types.write_text(
        json.dumps(
            [
                {
                    "name": "a100-96x",
                    "offerings": [offering],
                    "architecture": "amd64",
                    "operatingSystems": ["linux"],
                    "resources": {"cpu": CPU, "memory": MEMORY, "nvidia.com/gpu": "40"},
                }
            ]
        )
    )
    metrics, health = free_port(), free_port()
    plan = ServerPlan(
        name="karpenter",
        argv=(str(folder / "karpenter"),),
        cwd=system.folder,
        log_path=system.folder / "karpenter.log",
        url=f"http://{LOOPBACK}:{health}",
        port=health,
        probe=partial(http_ready, f"http://{LOOPBACK}:{health}/healthz"),
        env={
            "KUBECONFIG": str(kubeconfig),
            "SYSTEM_NAMESPACE": "default",
            "KUBERNETES_MIN_VERSION": "1.19.0-0",
            "KARPENTER_SERVICE": "karpenter",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(health),
            "INSTANCE_TYPES_FILE_PATH": str(types),
            "BATCH_IDLE_DURATION": "1s",
        },
    )
    with running(plan, die_with_parent=True):
        yield


AUTOSCALERS = {"cluster-autoscaler": cluster_autoscaler, "karpenter": karpenter}


def create(system: System, path: str, body: Json) -> Json:
    """Create an object."""
    answer = system.api.post(path, json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def nodes_of(system: System) -> list[Json]:
    """The pool's nodes."""
    return list(system.get(f"/api/v1/nodes?labelSelector=pool={POOL}")["items"])
