"""The notes after `helm install` name what this cluster lacks; Helm asks our API server for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.kubernetes.servers import Cluster, emulated
from tests.unit.k8s.chart.rendered import CHART, HELM

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")
LABEL = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with emulated(tmp_path_factory.mktemp("server")) as found:
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
