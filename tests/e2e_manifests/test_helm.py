"""The chart on real control plane parts: install, upgrade, rollback, uninstall beside running pods.

The stand-ins are those of `test_from_nothing.py`.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import measured
from tests.e2e.system import a_pod, slice_of
from tests.e2e_manifests.conftest import NODE, Cluster
from tests.e2e_manifests.node.pod_objects import NAMESPACE
from tests.e2e_manifests.test_from_nothing import APPLICATIONS, runs, sql, status

HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
# One machine has each port once.
SINGLE = tuple(f"{path}.replicas=1" for path in ("scheduler", "scheduler.admissionWebhook"))
SERVICES = ("hami-scheduler", "hami-webhook")
"""Deployments that read the device configuration, so that a change of it replaces their pods."""

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]


def describes_itself(cluster: Cluster) -> bool:
    """Return whether the API server has schemas for clients that check before they apply."""
    return (cluster.folder / "bin" / "kubectl").is_symlink()


def install(cluster: Cluster) -> None:
    """In a namespace that helm makes, which it checks by the schemas whatever it is asked."""
    made: tuple[str, ...] = ("--create-namespace",)
    if not describes_itself(cluster):
        cluster.sh("kubectl", "create", "namespace", NAMESPACE)
        made = ()
    helm(cluster, "install", "hami", "k8s/chart", *made)


def helm(cluster: Cluster, *argv: str) -> str:
    """Run helm with the administrator's kubeconfig; the server validates the objects."""
    assert HELM is not None
    checks = () if describes_itself(cluster) else ("--disable-openapi-validation",)
    values = [part for each in SINGLE for part in ("--set", each)]
    extra = (*values, *checks) if argv[0] in ("install", "upgrade") else ()
    return cluster.sh(HELM, *argv, "--namespace", NAMESPACE, *extra).stdout


def run_pod(cluster: Cluster, name: str, memory_mib: int) -> None:
    answer = cluster.api.post(
        "/api/v1/namespaces/default/pods", json=a_pod(name, slice_of(memory_mib))
    )
    assert answer.status_code == 201, answer.text
    cluster.wait(
        lambda: runs(cluster, name), f"{name} runs", why=lambda: json.dumps(status(cluster, name))
    )


def identity(cluster: Cluster, name: str) -> tuple[object, object]:
    """Value that changes when the pod or its container restarts."""
    found = status(cluster, name)
    return found["startTime"], [each["restartCount"] for each in found["containerStatuses"]]


def services(cluster: Cluster) -> dict[str, bool]:
    """By uid of a pod of `SERVICES`, whether it is ready."""
    return {
        uid: each.ready_s is not None
        for uid, each in cluster.pods.pods.items()
        # By its label: the CronJob's pods are hami-webhook-certificate-*, at 03:17 and after it.
        if each.pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") in SERVICES
    }


def is_replaced(cluster: Cluster, old: Iterable[str]) -> bool:
    """Return whether every service runs in a new pod, and no old one does."""
    found = services(cluster)
    return len(found) == len(SERVICES) and all(found.values()) and found.keys().isdisjoint(old)


def wait_until_replaced(cluster: Cluster, old: dict[str, bool], what: str) -> None:
    cluster.wait(
        lambda: is_replaced(cluster, old),
        f"{what} is there",
        why=lambda: f"{old} {services(cluster)}",
    )


def test_a_release_comes_changes_and_goes_and_pods_with_slices_stay(cluster: Cluster) -> None:
    cluster.wait(
        lambda: cluster.api.get(f"/api/v1/nodes/{NODE}").status_code == 200, "the node registers"
    )
    cluster.sh("kubectl", "label", "node", NODE, "gpu=on")
    started = time.monotonic()
    install(cluster)
    cluster.lead_services()
    for name in APPLICATIONS:
        cluster.wait(lambda name=name: cluster.ready(name), f"{name} is ready")
    run_pod(cluster, "before", 4096)
    installed_s = time.monotonic() - started
    first = identity(cluster, "before")

    # One machine can't run two pods with one port; a cluster rolls.
    for name in SERVICES:
        recreate = json.dumps({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}})
        cluster.sh("kubectl", "-n", NAMESPACE, "patch", "deployment", name, "-p", recreate)
    old = services(cluster)
    helm(cluster, "upgrade", "hami", "k8s/chart", "--set", "devicePlugin.deviceSplitCount=4")
    wait_until_replaced(cluster, old, "the upgrade")
    run_pod(cluster, "between", 2048)
    old = services(cluster)
    helm(cluster, "rollback", "hami", "1")
    wait_until_replaced(cluster, old, "the rollback")
    run_pod(cluster, "after", 1024)
    held = "SELECT count(*) FROM allocations WHERE ended_at IS NULL AND state = 'allocated'"
    assert sql(cluster, held) == "3"
    assert cluster.denied_calls() == []

    helm(cluster, "uninstall", "hami")
    cluster.wait(lambda: not cluster.pods.pods, "our pods are gone")
    kinds = "deployments,daemonsets,statefulsets,jobs,services,roles,networkpolicies"
    left = cluster.sh("kubectl", "-n", NAMESPACE, "get", kinds, "-o", "name").stdout.split()
    assert left == []
    assert "hami-postgres-owner" in cluster.sh("kubectl", "-n", NAMESPACE, "get", "secrets").stdout
    for name in ("before", "between", "after"):
        assert runs(cluster, name)
    assert identity(cluster, "before") == first
    measured.note(f"helm install to the first running pod: {installed_s:.1f} s")
