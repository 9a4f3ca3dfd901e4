"""`hamictl doctor` on a cluster, and beside one with a local system."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hamictl.__main__ import app
from typer.testing import CliRunner

from tests import installation_state as states
from tests.contract.kubernetes.servers import MERGE_PATCH, Cluster, real, start_emulation
from tests.control_plane import Assets
from tests.installation_state import CASES, NAMESPACE, ORDER, State

Rows = list[dict[str, str]]
Doctor = Callable[[], tuple[int, Rows]]


@pytest.fixture(scope="module")
def cluster(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with real(tmp_path_factory.mktemp("plane"), kubernetes_assets) as found:
        yield found


@pytest.fixture
def doctor(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Doctor:
    folder = tmp_path_factory.mktemp("none")
    env = {"HAMI_FOLDER": str(folder), "KUBECONFIG": str(cluster.kubeconfig)}
    for name in ("HAMI_SCHEDULER_URL", "HAMI_METRICS_URL"):
        monkeypatch.delenv(name, raising=False)

    def run() -> tuple[int, Rows]:
        done = CliRunner().invoke(app, ["doctor", "-o", "json"], env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return done.exit_code, json.loads(done.stdout)["items"]

    return run


def hold(cluster: Cluster, before: State, wanted: State) -> None:
    """Brings the API server from one state to another."""
    # A Job's counts never fall.
    again = {p for p in before.keys() & wanted.keys() if "/jobs/" in p and before[p] != wanted[p]}
    for path in (before.keys() - wanted.keys()) | again:
        answer = cluster.client.request("DELETE", path, json={"propagationPolicy": "Background"})
        assert answer.status_code in (200, 202), answer.text
    for path, each in wanted.items():
        if before.get(path) == each:
            continue
        body = {key: value for key, value in each.items() if key != "status"}
        collection = path.rpartition("/")[0]
        if path not in before or path in again:
            cluster.ok(cluster.client.post(collection, json=body))
        elif "webhooks" in body:
            cluster.ok(cluster.patch(path, {"webhooks": body["webhooks"]}))
        elif "replicas" in body.get("spec", {}):
            cluster.ok(cluster.patch(path, {"spec": {"replicas": body["spec"]["replicas"]}}))
        if "status" in each:
            cluster.ok(cluster.patch(f"{path}/status", {"status": each["status"]}, MERGE_PATCH))


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    body = {"metadata": {"name": NAMESPACE}}
    cluster.ok(cluster.client.post("/api/v1/namespaces", json=body))
    hold(cluster, {}, states.ready())
    return cluster


def test_on_an_empty_cluster_one_line_has_what_to_do(doctor: Doctor) -> None:
    status, rows = doctor()

    assert status == 6
    # No agent of this cluster has written how its node binds.
    assert [row["part"] for row in rows] == ["API server", "installation", "binding"]
    assert rows[1]["detail"] == "namespace hami-system does not exist"


def test_of_a_whole_installation_nothing_is_missing(installed: Cluster, doctor: Doctor) -> None:
    status, rows = doctor()

    assert status == 0, rows
    parts = ["API server", *ORDER, "binding", "ledger", "settings"]
    assert [row["part"] for row in rows] == parts
    unasked = "not asked, as HAMI_SCHEDULER_URL is not set"
    assert [(row["state"], row["detail"]) for row in rows[-2:]] == [("unknown", unasked)] * 2


@pytest.mark.parametrize("what", CASES)
def test_one_part_is_broken_and_one_line_has_it(
    installed: Cluster, doctor: Doctor, what: str
) -> None:
    breaks, part, detail, step = CASES[what]
    before, wanted = states.ready(), states.break_state(breaks)
    hold(installed, before, wanted)
    try:
        status, rows = doctor()
    finally:
        hold(installed, wanted, before)

    assert status == 6
    [wrong] = [row for row in rows if row["state"] == "missing"]
    assert wrong["part"] == part
    assert detail in wrong["detail"]
    assert step in wrong["next"]
    assert "\n" not in wrong["detail"]


HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def test_services_outside_the_cluster_are_asked_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their addresses: no namespace of the cluster is looked into."""
    for name in ("HAMI_METRICS_URL", "HAMI_POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    hook = {
        "name": "pods.webhook.hami.io",
        "clientConfig": {"url": "https://webhook:8443/webhook"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [],
    }
    with start_emulation(tmp_path) as cluster:
        body = {"metadata": {"name": "hami-webhook"}, "webhooks": [hook]}
        cluster.ok(cluster.client.post(HOOKS, json=body))

        done = CliRunner().invoke(
            app,
            ["doctor", "-o", "json"],
            env={
                "HAMI_FOLDER": str(tmp_path / "none"),
                "KUBECONFIG": str(cluster.kubeconfig),
                "HAMI_SCHEDULER_URL": "http://127.0.0.1:1",
                "HAMI_REDIS_URL": "redis://127.0.0.1:1",
                "HAMI_POSTGRES_DSN": "postgresql://hami:secret@127.0.0.1:1/hami",
            },
        )

    assert done.exit_code == 6, done.output
    found = {row["part"]: row for row in json.loads(done.stdout)["items"]}
    states = {part: row["state"] for part, row in found.items()}
    assert list(found) == [
        *("API server", "webhook", "Postgres", "Redis", "NATS", "scheduler", "agents", "metrics"),
        *("binding", "ledger", "settings"),
    ]
    assert (states["API server"], states["webhook"]) == ("ok", "ok")
    assert (states["Postgres"], states["NATS"], states["Redis"]) == (
        "missing",
        "unknown",
        "missing",
    )
    assert (states["scheduler"], found["scheduler"]["next"]) == ("unknown", "repair Postgres first")
    assert found["Postgres"]["next"] == "see its log"
    assert "secret" not in done.stdout
