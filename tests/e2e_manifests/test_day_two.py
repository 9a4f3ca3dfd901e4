"""Secrets made new on a running `k8s/base`.

What is not real here is as in `test_from_nothing.py`. The commands are those of
`docs/operations.md`, as they stand there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import measured
from tests.e2e.system import a_pod, slice_of
from tests.e2e_manifests.conftest import Cluster
from tests.e2e_manifests.page import commands
from tests.e2e_manifests.pod_objects import NAMESPACE
from tests.e2e_manifests.test_from_nothing import installed, runs, sql, status

__all__ = ["installed"]

PODS = "/api/v1/namespaces/default/pods"
TLS = {
    "hami-webhook-tls",
    "hami-scheduler-tls",
    "hami-extender-client-tls",
    "hami-postgres-tls",
    "hami-redis-tls",
    "hami-nats-tls",
}
ROTATED = {
    "Certificates": TLS,
    "The certificates' authority": {"hami-ca", "hami-webhook-tls"},
    "Passwords and the login key of the bus": {
        "hami-nats-scheduler",
        "hami-nats-metrics",
        "hami-nats-webhook",
        "hami-nats-login-key",
    },
    "Passwords of the services at Postgres": {"hami-postgres-scheduler", "hami-postgres-metrics"},
    "The password of Redis": {"hami-redis"},
    "The key that signs grants": {"hami-grant-key", "hami-grant-public-key"},
}
"""By heading of the page, the Secrets that are others afterwards."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def steady(installed: Cluster) -> Iterator[Cluster]:
    """A pod with a slice runs from here to the end, and nothing touches it."""
    create(installed, "steady")
    wait_until_runs(installed, "steady")
    began = identity(installed, "steady")
    yield installed
    assert identity(installed, "steady") == began


def create(cluster: Cluster, name: str) -> bool:
    """False where the webhook's only replica is being restarted."""
    answer = cluster.api.post(PODS, json=a_pod(name, slice_of(1024, 5)))
    assert answer.status_code == 201 or answer.status_code >= 500, answer.text
    return answer.status_code == 201


def wait_until_runs(cluster: Cluster, name: str) -> None:
    cluster.wait(
        lambda: runs(cluster, name), f"{name} runs", why=lambda: json.dumps(status(cluster, name))
    )


def identity(cluster: Cluster, name: str) -> tuple[object, object]:
    """Changes when the pod or its container is started again."""
    found = status(cluster, name)
    return found["startTime"], [each["restartCount"] for each in found["containerStatuses"]]


def secrets(cluster: Cluster) -> dict[str, object]:
    found = cluster.pods.objects.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    return {each["metadata"]["name"]: each.get("data") for each in found}


def typed(cluster: Cluster, heading: str) -> Iterator[None]:
    """Runs the page's commands; the manifests are those of a machine with each port once."""
    for argv in commands(heading):
        cluster.run(*(str(cluster.single()) if part == "k8s/base" else part for part in argv))
        yield


@pytest.mark.parametrize("heading", ROTATED)
def test_a_secret_is_made_new_while_pods_come(steady: Cluster, heading: str) -> None:
    cluster = steady
    before, refused = secrets(cluster), 0
    made: list[str] = []
    for _ in typed(cluster, heading):
        name = f"rotation-{len(made)}"
        made += [name] if (taken := create(cluster, name)) else []
        refused += not taken
    for name in made:
        wait_until_runs(cluster, name)
    after = secrets(cluster)
    create(cluster, "afterwards")
    wait_until_runs(cluster, "afterwards")

    assert {name for name in after if after[name] != before.get(name)} == ROTATED[heading]
    assert before.keys() == after.keys()
    assert cluster.denied() == []
    for name in (*made, "afterwards"):
        cluster.sh("kubectl", "delete", "pod", name, "--grace-period=1")
    live = "SELECT string_agg(pod_name, ' ') FROM allocations WHERE ended_at IS NULL"
    cluster.wait(
        lambda: sql(cluster, live) == "steady",
        "the slices are free",
        why=lambda: sql(cluster, live),
    )
    measured.note(
        f"{heading}: made new beside {len(made)} pods that came, 0 failed;"
        f" {refused} creations refused while the only webhook was restarted"
    )
