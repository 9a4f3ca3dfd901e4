"""A real control plane: the flags and the configuration fit the version, and it schedules."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hamilocal.supervisor.plan import ServerError

from tests.control_plane import (
    Assets,
    ControlPlane,
    KubeUser,
    config_version,
    control_plane,
    find_assets,
    node_user,
    scheduler_config,
)
from tests.processes import running


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 20), "v1beta1"),
        ((1, 22), "v1beta2"),
        ((1, 23), "v1beta3"),
        ((1, 24), "v1beta3"),
        ((1, 25), "v1"),
        ((1, 36), "v1"),
    ],
)
def test_the_configuration_is_of_a_version_that_the_scheduler_reads(
    version: tuple[int, int], expected: str
) -> None:
    assert config_version(version) == expected
    config = scheduler_config(version=version, kubeconfig=Path("/k"), extenders=[])
    assert config["apiVersion"] == f"kubescheduler.config.k8s.io/{expected}"
    assert ("healthzBindAddress" in config) == (version < (1, 22))


def test_a_folder_without_the_binaries_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no executable kube-apiserver"):
        find_assets(tmp_path)


@pytest.fixture(scope="module")
def plane(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One control plane for the module."""
    users = (node_user("node-a"), KubeUser(name="nobody-special"))
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, assets=kubernetes_assets, users=users) as running_plane:
        yield running_plane


def kubectl(plane: ControlPlane, *arguments: str, user: str = "admin", stdin: str = "") -> Any:
    kubeconfig = plane.server.kubeconfigs[user]
    return subprocess.run(
        ["kubectl", f"--kubeconfig={kubeconfig}", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=180,
        check=False,
    )


@pytest.mark.e2e
def test_the_real_scheduler_binds_a_pod_to_a_node(plane: ControlPlane) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    # Some builds of the API server answer 503 to the question for the schema (tests/kubectl.py).
    both = json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, pod]})
    made = kubectl(plane, "create", "--validate=false", "-f", "-", stdin=both)
    assert made.returncode == 0, made.stderr
    with running(plane.scheduler_plan([]), die_with_parent=True):
        bound = kubectl(plane, "wait", "--for=condition=PodScheduled", "pod/one", "--timeout=120s")
        assert bound.returncode == 0, bound.stderr
    where = kubectl(plane, "get", "pod", "one", "-o", "jsonpath={.spec.nodeName}")
    assert where.stdout == "node-a"


@pytest.mark.e2e
def test_a_user_may_do_only_what_rbac_grants(plane: ControlPlane) -> None:
    refused = kubectl(plane, "get", "pods", user="nobody-special")
    assert 'User "nobody-special" cannot list resource "pods"' in refused.stderr
    node = kubectl(plane, "auth", "can-i", "get", "nodes/node-a", user="system:node:node-a")
    assert node.stdout.strip() == "yes"
