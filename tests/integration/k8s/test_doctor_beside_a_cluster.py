"""`hamictl doctor` of services beside a cluster, as docker compose has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hamictl.__main__ import app
from typer.testing import CliRunner

from tests.contract.kubernetes.servers import emulated

pytestmark = pytest.mark.integration

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
    with emulated(tmp_path) as cluster:
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
        "binding",
    ]
    assert (states["API server"], states["webhook"]) == ("ok", "ok")
    assert (states["Postgres"], states["NATS"], states["Redis"]) == (
        "missing",
        "unknown",
        "missing",
    )
    assert (states["scheduler"], found["scheduler"]["next"]) == ("unknown", "first Postgres, above")
    assert found["Postgres"]["next"] == "its log"
    assert "secret" not in done.stdout
