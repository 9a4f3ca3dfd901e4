"""Duties of kube-controller-manager in our API server, and objects after it was killed."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests.contract.kubernetes.bodies import bind, config_map, pod
from tests.contract.kubernetes.servers import (
    TOKEN,
    Cluster,
    client_for,
    emulator_plan,
    fresh_namespace,
    start_emulation,
)
from tests.processes import start
from tests.waiting import PATIENCE_S, wait


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_emulation(tmp_path_factory.mktemp("kubernetes"), "--lost-node-s", "0.5") as cluster:
        yield cluster


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    return fresh_namespace(server)


def wait_until_gone(cluster: Cluster, plural: str, name: str) -> None:
    path = cluster.path(plural, name)
    wait(lambda: cluster.client.get(path).status_code == 404, what=f"{plural}/{name} is gone")


def owner_in(cluster: Cluster) -> Json:
    """A new ConfigMap, as its dependents refer to it."""
    made = cluster.create("configmaps", config_map("owner"))
    uid = made["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}


def test_dependents_go_with_their_owner(cluster: Cluster) -> None:
    owner = owner_in(cluster)
    foreign = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "w1"}
    cluster.create(
        "pods", pod("owned") | {"metadata": {"name": "owned", "ownerReferences": [owner]}}
    )
    cluster.create("configmaps", config_map("kept", ownerReferences=[foreign]))
    cluster.ok(cluster.client.delete(cluster.path("configmaps", "owner")))
    wait_until_gone(cluster, "pods", "owned")
    assert cluster.get("configmaps", "kept")


def test_a_deleted_namespace_is_emptied_and_removed(cluster: Cluster) -> None:
    cluster.create("configmaps", config_map())
    path = f"/api/v1/namespaces/{cluster.namespace}"
    marked = cluster.ok(cluster.client.delete(path))
    assert marked["status"]["phase"] == "Terminating"
    answer = cluster.client.post(cluster.path("configmaps"), json=config_map("late"))
    assert answer.status_code in (403, 404)
    wait(lambda: cluster.client.get(path).status_code == 404, what="the namespace is gone")
    assert cluster.ok(cluster.client.get(cluster.path("configmaps")))["items"] == []


def test_pods_of_a_node_that_is_gone_are_removed(cluster: Cluster) -> None:
    name = f"node-{cluster.namespace}"
    cluster.ok(cluster.client.post("/api/v1/nodes", json={"metadata": {"name": name}}))
    cluster.create("pods", pod())
    bind(cluster, "a", name)
    cluster.ok(cluster.client.delete(f"/api/v1/nodes/{name}"))
    wait_until_gone(cluster, "pods", "a")


MAPS = "/api/v1/namespaces/default/configmaps"


def test_nothing_that_was_answered_is_lost_and_versions_never_repeat(tmp_path: Path) -> None:
    plan = emulator_plan(tmp_path)
    acknowledged: dict[str, int] = {}
    highest = 0
    for life in range(4):
        server = start(plan, die_with_parent=True)
        with client_for(plan.url, tmp_path / "ca.crt", TOKEN) as client:
            listed = client.get(MAPS).json()
            assert int(listed["metadata"]["resourceVersion"]) >= highest
            found = {
                each["metadata"]["name"]: int(each["metadata"]["resourceVersion"])
                for each in listed["items"]
            }
            assert found.items() >= acknowledged.items()
            assert len(set(found.values())) == len(found)
            killer = threading.Timer(0.5, server.kill)
            killer.start()
            try:
                _write_until_it_dies(client, life, acknowledged)
            finally:
                killer.join()
        highest = max(acknowledged.values())
    assert len(acknowledged) > 40


def test_a_watch_from_before_the_kill_must_list_again(tmp_path: Path) -> None:
    plan = emulator_plan(tmp_path)
    server = start(plan, die_with_parent=True)
    with client_for(plan.url, tmp_path / "ca.crt", TOKEN) as client:
        first = _create(client, "a")
        last = _create(client, "b")
    server.kill()
    server = start(plan, die_with_parent=True)
    try:
        with client_for(plan.url, tmp_path / "ca.crt", TOKEN) as client:
            lines = _watch(client, first)
            assert lines[0]["type"] == "ERROR"
            assert (lines[0]["object"]["code"], lines[0]["object"]["reason"]) == (410, "Expired")
            assert _watch(client, last) == []
    finally:
        server.stop()


def test_a_forgetful_server_makes_watches_expire(tmp_path: Path) -> None:
    with start_emulation(tmp_path, "--compact-every", "5") as cluster:
        first = _create(cluster.client, "a")
        for index in range(10):
            _create(cluster.client, f"b{index}")
        assert _watch(cluster.client, first)[0]["object"]["code"] == 410


def test_wrong_flags_and_files_are_one_line_each(tmp_path: Path) -> None:
    import subprocess
    import sys

    plan = emulator_plan(tmp_path)
    module = [sys.executable, "-m", "kubelocal.apiserver"]
    done = subprocess.run(module, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr
    missing = [*plan.argv[:-1], str(tmp_path / "no.key")]
    done = subprocess.run(missing, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _write_until_it_dies(client: httpx.Client, life: int, acknowledged: dict[str, int]) -> None:
    index = 0
    while True:
        name = f"m-{life}-{index}"
        try:
            acknowledged[name] = _create(client, name)
        except httpx.HTTPError:
            return
        index += 1


def _create(client: httpx.Client, name: str) -> int:
    answer = client.post(MAPS, json={"metadata": {"name": name}})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["metadata"]["resourceVersion"])


def _watch(client: httpx.Client, version: int) -> list[Json]:
    import orjson

    query = {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": "1"}
    return [orjson.loads(line) for line in client.get(MAPS, params=query).text.splitlines()]
