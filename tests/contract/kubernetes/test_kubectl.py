"""kubectl and Helm's notes against our API server."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.kubernetes.servers import Cluster, start_emulation
from tests.unit.k8s.chart.rendered import CHART, HELM
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


POD = """
apiVersion: v1
kind: Pod
metadata: {name: gpu-pod}
spec:
  containers:
  - name: main
    image: ubuntu:22.04
    resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: 3k}}
"""


class Kubectl:
    def __init__(self, binary: str, kubeconfig: Path, cache: Path) -> None:
        self._base = [binary, "--kubeconfig", str(kubeconfig), "--cache-dir", str(cache)]

    def __call__(self, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [*self._base, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    binary = shutil.which("kubectl")
    if binary is None:
        pytest.skip("no kubectl on this machine")
    folder = tmp_path_factory.mktemp("kubectl")
    with start_emulation(folder) as cluster:
        yield Kubectl(binary, cluster.kubeconfig, folder / "cache")


def test_a_pod_from_apply_to_delete(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=POD) == "pod/gpu-pod created\n"
    assert kubectl("apply", "-f", "-", stdin=POD) == "pod/gpu-pod unchanged\n"
    header, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert header.split()[:6] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"]
    assert row.split()[:3] == ["gpu-pod", "0/1", "Pending"]
    assert "nvidia.com/gpumem:  3k" in kubectl("describe", "pod", "gpu-pod")
    kubectl("label", "pod", "gpu-pod", "a=b")
    kubectl("annotate", "pod", "gpu-pod", "c=d")
    kubectl("patch", "pod", "gpu-pod", "-p", '{"metadata":{"labels":{"e":"f"}}}')
    labels = kubectl("get", "pod", "gpu-pod", "-o", "jsonpath={.metadata.labels}")
    assert labels == '{"a":"b","e":"f"}'
    assert "deleted" in kubectl("delete", "pod", "gpu-pod")
    assert "not found" in kubectl("get", "pod", "gpu-pod", fails=True)


def test_an_unknown_field_is_refused(kubectl: Kubectl) -> None:
    text = POD.replace("image:", "imagge:")
    assert 'unknown field "' in kubectl("apply", "-f", "-", stdin=text, fails=True)


def test_objects_made_by_name(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "quota", "q", "--hard=pods=2")
    kubectl("create", "namespace", "other")
    kubectl("create", "job", "j", "--image=busybox")
    assert kubectl("get", "quota", "q", "-o", "jsonpath={.spec.hard.pods}") == "2"
    assert "Job" in kubectl("get", "job", "j", "-o", "yaml")
    kubectl("delete", "namespace", "other")
    assert "other" not in kubectl("get", "namespaces")


def test_api_resources(kubectl: Kubectl) -> None:
    assert "deployments" in kubectl("api-resources")


LABEL = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_emulation(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart without its objects, of which our API server lacks some kinds."""
    folder = tmp_path / "chart"
    shutil.copytree(CHART, folder)
    for path in (folder / "templates").rglob("*.yaml"):
        path.unlink()
    return folder


def notes(cluster: Cluster, chart: Path, level: str, *values: str) -> str:
    name = f"gpu-{level or 'none'}-{len(values)}"
    metadata = {"name": name, "labels": {LABEL: level} if level else {}}
    cluster.ok(cluster.client.post("/api/v1/namespaces", json={"metadata": metadata}))
    assert HELM is not None
    done = subprocess.run(
        [HELM, "install", "x", chart, "-n", name, "--dry-run=server", *values],
        env={"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(chart.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:\n")[2]


def test_a_namespace_under_restricted_gets_the_line_that_lets_the_agent_in(
    cluster: Cluster, chart: Path
) -> None:
    text = notes(cluster, chart, "restricted")

    assert "Pod Security `restricted` of this namespace refuses" in text
    assert f"kubectl label --overwrite namespace gpu-restricted-0 {LABEL}=privileged" in text


def test_a_namespace_without_a_level_gets_that_line_for_the_clusters_default(
    cluster: Cluster, chart: Path
) -> None:
    text = notes(cluster, chart, "")

    assert "refuses if `baseline` or `restricted` is your cluster's default" in text


def test_what_is_there_is_not_named(cluster: Cluster, chart: Path) -> None:
    values = {
        "global.imageRegistry": "registry.example",
        "postgres.storageClassName": "a",
        "nats.storageClassName": "a",
    }

    text = notes(
        cluster, chart, "privileged", "--set", ",".join(f"{k}={v}" for k, v in values.items())
    )

    assert "Pod Security" not in text
    assert "StorageClass" not in text
    assert "global.imageRegistry" not in text
    assert "Postgres is one pod on one volume" in text


def test_a_cluster_without_a_default_class_and_an_empty_registry_are_named(
    cluster: Cluster, chart: Path
) -> None:
    text = notes(cluster, chart, "baseline")

    assert "name one in postgres.storageClassName and nats.storageClassName" in text
    assert "global.imageRegistry is empty" in text
