"""kubectl of this machine against our API server: the commands that people type."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.kubernetes.servers import emulated
from tests.waiting import PATIENCE_S

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
    with emulated(folder) as cluster:
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
