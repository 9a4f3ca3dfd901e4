"""`k8s/base` from nothing to a running slice, on real control plane parts, as it is shipped.

Not real here: container images and runtime (`stand_in_kubelet.py` runs the pods' processes with the
users, files and rights of their specs), the network (Services have their addresses on this machine,
so one replica of each runs), volumes behind claims, and the cards.
"""

import json
from typing import Any

import pytest

from tests import measured
from tests.e2e.system import a_pod, slice_of
from tests.e2e_manifests.conftest import NODE, Cluster
from tests.e2e_manifests.node.pod_objects import NAMESPACE

pytestmark = pytest.mark.timeout(1200)

APPLICATIONS = (
    "hami-bootstrap",
    "hami-postgres",
    "hami-redis",
    "hami-nats",
    "hami-migrations",
    "hami-scheduler",
    "hami-webhook",
    "hami-metrics",
    "hami-node-agent",
    "hami-migrations-post",
)


def sql(cluster: Cluster, query: str) -> str:
    """Ask the ledger as its owner, over TLS, by the DSN of the Secret."""
    dsn = cluster.pods.objects.data("secrets", "hami-postgres-owner")["dsn"].decode()
    ca_file = cluster.folder / "hami-ca.crt"
    ca_file.write_bytes(cluster.pods.objects.data("configmaps", "hami-ca")["ca.crt"])
    return cluster.sh(
        "psql", "-XAtq", "-c", query, dsn.replace("/ca/ca.crt", str(ca_file))
    ).stdout.strip()


def status(cluster: Cluster, name: str) -> dict[str, Any]:
    """The pod's."""
    return dict(cluster.pods.objects.get(f"/api/v1/namespaces/default/pods/{name}")["status"])


def runs(cluster: Cluster, name: str) -> bool:
    """Return whether it and all its containers do."""
    found = status(cluster, name)
    states = [each.get("state", {}) for each in found.get("containerStatuses", ())]
    return found.get("phase") == "Running" and all("running" in state for state in states)


def restarts(cluster: Cluster, prefix: str) -> list[int]:
    """Return the restarts of the pods whose names begin with the prefix."""
    return [each.restarts for each in cluster.pods.pods.values() if each.name.startswith(prefix)]


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """`k8s/base` runs, by one command."""
    cluster.wait(
        lambda: cluster.api.get(f"/api/v1/nodes/{NODE}").status_code == 200, "the node registers"
    )
    cluster.sh("kubectl", "label", "node", NODE, "gpu=on")
    cluster.sh("kubectl", "apply", "--kustomize", "k8s/base")
    # One machine has each port once.
    for name in ("scheduler", "webhook"):
        cluster.sh("kubectl", "-n", NAMESPACE, "scale", "--replicas=1", f"deployment/hami-{name}")
    cluster.lead_services()
    for name in APPLICATIONS:
        cluster.wait(lambda name=name: cluster.ready(name), f"{name} is ready")
    cluster.sh("kubectl", "apply", "--kustomize", str(cluster.single()))
    return cluster


def test_from_nothing_to_a_running_slice(installed: Cluster) -> None:
    cluster = installed
    pods = {"one": slice_of(4096, 30), "two": slice_of(8192), "both": slice_of(1024, 10, count=2)}
    for name, limits in pods.items():
        answer = cluster.api.post("/api/v1/namespaces/default/pods", json=a_pod(name, limits))
        assert answer.status_code == 201, answer.text
        assert answer.json()["spec"]["schedulerName"] == "hami-scheduler", "the webhook was asked"
    for name in pods:
        cluster.wait(
            lambda name=name: runs(cluster, name),
            f"{name} runs",
            why=lambda name=name: json.dumps(status(cluster, name)),
        )
    assert restarts(cluster, "hami-migrations-post-") == [0], "it waits for Postgres and services"
    from_nothing_s = sum(took_s for _, took_s in cluster.times)
    # On a busy machine a first try may have timed out; what ended is not what the pods run with.
    held = "SELECT string_agg(state, ' ') FROM allocations WHERE ended_at IS NULL"
    assert sql(cluster, held) == " ".join(["allocated"] * len(pods))
    assert cluster.denied_calls() == []
    lines = seen_cards(cluster, "one")
    assert {line["total_bytes"] >> 20 for line in lines} == {4096}

    cluster.wait(lambda: checked_policies(cluster) is not None, "the policies are checked")
    assert checked_policies(cluster) == []

    cluster.sh("kubectl", "delete", "pod", "one", "--grace-period=1")
    cluster.wait(
        lambda: sql(cluster, "SELECT state FROM allocations WHERE pod_name = 'one'") == "released",
        "the slice is freed",
    )
    renew = ("create", "job", "first", "--from=cronjob/hami-webhook-certificate")
    cluster.sh("kubectl", "-n", NAMESPACE, *renew)
    cluster.wait(lambda: job_is_done(cluster, "first"), "the CronJob's work is done")
    # Applied once more, as every upgrade and every GitOps tool does.
    cluster.sh("kubectl", "apply", "--kustomize", str(cluster.single()))

    for what, took_s in cluster.times:
        if not what.startswith("psql"):
            measured.note(f"{took_s:6.1f} s  {what}")
    measured.note(f"from nothing to {len(pods)} running pods: {from_nothing_s:.1f} s")
    calls = ", ".join(f"{name} {count}" for name, count in sorted(cluster.calls().items()))
    measured.note(f"calls by account: {calls}")
    measured.note(f"denied calls in the audit log: {len(cluster.denied_calls())}")
    assert cluster.denied_calls() == []


def checked_policies(cluster: Cluster) -> list[str] | None:
    """Return the API server's warnings about our expressions; None before it has checked them."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = cluster.pods.objects.get(path)["items"]
    assert found
    for each in found:
        if each.get("status", {}).get("observedGeneration") != each["metadata"]["generation"]:
            return None
    return [
        f"{each['metadata']['name']}: {warning}"
        for each in found
        for warning in each["status"].get("typeChecking", {}).get("expressionWarnings", ())
    ]


def seen_cards(cluster: Cluster, name: str) -> list[dict[str, int]]:
    """Return the figures of each card that the probe in the pod was shown."""
    uid = cluster.pods.objects.get(f"/api/v1/namespaces/default/pods/{name}")["metadata"]["uid"]
    path = cluster.folder / "kubelet" / "pods" / uid / "cuda.log"

    def find_devices() -> list[dict[str, int]]:
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "device"]

    def why() -> str:
        return path.read_text() if path.exists() else f"no {path}"

    return cluster.wait(find_devices, f"{name} sees its card", why=why)


def job_is_done(cluster: Cluster, name: str) -> bool:
    job = cluster.pods.objects.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")
    return bool(job["status"].get("succeeded"))
