"""Secrets made new, a node drained, rights compared, and the removal, of a running `k8s/base`.

The stand-ins are those of `test_from_nothing.py`. The commands are those of `docs/operations.md`,
as they stand there.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import measured
from tests.e2e.system import a_pod, slice_of
from tests.e2e_manifests.conftest import NODE, Cluster
from tests.e2e_manifests.node.pod_objects import NAMESPACE
from tests.e2e_manifests.page import commands
from tests.e2e_manifests.rights import Mutants, calls, denied_without, list_granted_rights
from tests.e2e_manifests.test_from_nothing import installed, job_is_done, runs, sql, status

__all__ = ["installed"]

PODS = "/api/v1/namespaces/default/pods"
PROJECT = Path(__file__).parents[2]
TLS = {
    "hami-webhook-tls",
    "hami-scheduler-tls",
    "hami-postgres-tls",
    "hami-redis-tls",
    "hami-nats-tls",
}
ROTATED = {
    "Certificates": TLS,
    "The certificates' authority": {"hami-ca"},
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
_SCHEDULER = "tests/integration/scheduler"
_POLICIES = "tests/contract/policies/test_nodes.py"
_HERE = "tests/e2e_manifests/test_day_two.py"
_SAME_USE = (
    f"{_SCHEDULER}/extender/test_explaining.py::test_another_replica_counts_up_the_same_event"
)
_PLANS = (
    "tests/e2e/test_preemption_preview.py"
    "::test_a_plan_names_the_pod_whose_end_lets_an_urgent_pod_run"
)
_GROUPS = "tests/e2e/test_groups.py::test_a_podgroup_of_scheduler_plugins_has_the_quorum"
USED_IN_OTHER_TESTS = {
    # A reason why a pod waits, the same again, and again by another replica.
    ("hami-scheduler", "create", "events"): _SAME_USE,
    ("hami-scheduler", "get", "events"): _SAME_USE,
    ("hami-scheduler", "patch", "events"): _SAME_USE,
    # A binding whose answer was lost; annotations that another client changed.
    ("hami-scheduler", "get", "pods"): (
        f"{_SCHEDULER}/extender/test_binding.py::test_a_lost_answer_to_the_binding_is_read_back"
    ),
    ("hami-scheduler", "patch", "pods"): (
        f"{_SCHEDULER}/pods/test_mirrored_grants.py"
        "::test_an_annotation_that_somebody_changed_is_the_ledgers_again"
    ),
    # A container that got another pod's devices.
    ("hami-scheduler", "delete", "pods"): (
        "tests/contract/policies/test_pods.py"
        "::test_the_scheduler_ends_pods_that_are_bound_and_have_not_started_and_no_others"
    ),
    # Plans of what would have to end for a pod.
    ("hami-scheduler", "list", "namespaces"): _PLANS,
    ("hami-scheduler", "list", "poddisruptionbudgets"): _PLANS,
    ("hami-scheduler", "list", "priorityclasses"): _PLANS,
    # Groups of pods, where the API server serves their kind.
    ("hami-scheduler", "list", "podgroups"): _GROUPS,
    ("hami-scheduler", "watch", "podgroups"): _GROUPS,
    # Nodes of HAMi's own plugin.
    ("hami-scheduler", "get", "nodes"): f"{_POLICIES}::test_the_scheduler_locks_and_asks_nodes",
    ("hami-scheduler", "patch", "nodes"): f"{_POLICIES}::test_the_scheduler_locks_and_asks_nodes",
    # People with tokens.
    ("hami-scheduler", "create", "subjectaccessreviews"): (
        "tests/integration/k8s/test_hamictl_on_a_cluster.py::test_who_may_read_reads"
    ),
    # A container that the node refuses; a pod that may be gone.
    ("hami-node-agent", "create", "events"): (
        f"{_POLICIES}::test_an_agent_speaks_for_its_own_node_in_events"
    ),
    ("hami-node-agent", "get", "pods"): (
        "tests/unit/node_agent/cleanup/test_garbage_collection.py"
        "::test_a_pod_that_runs_on_after_its_grant_ended_is_reported_once"
    ),
    # Deleted objects.
    ("hami-webhook-certificate", "create", "secrets"): (
        f"{_HERE}::test_a_secret_is_made_new_while_pods_come"
    ),
    ("hami-webhook-certificate", "create", "configmaps"): (
        "tests/integration/webhook/test_renewing.py::test_it_is_made_trusted_and_then_left_alone"
    ),
}
"""(account, verb, resource) that this case may not use -> the case that does."""

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def began(installed: Cluster) -> tuple[object, object]:
    """A pod with a slice runs."""
    create(installed, "steady")
    wait_until_runs(installed, "steady")
    return identity(installed, "steady")


@pytest.fixture
def steady(installed: Cluster, began: tuple[object, object]) -> Iterator[Cluster]:
    """Nothing touches that pod."""
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
    """Value that changes when the pod or its container restarts."""
    found = status(cluster, name)
    return found["startTime"], [each["restartCount"] for each in found["containerStatuses"]]


def secrets(cluster: Cluster) -> dict[str, object]:
    found = cluster.pods.objects.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    return {each["metadata"]["name"]: each.get("data") for each in found}


def type_commands(cluster: Cluster, heading: str) -> Iterator[None]:
    """Run the page's commands; the manifests are those of a machine with each port once."""
    others = {"k8s/base": str(cluster.single()), "--replicas=2": "--replicas=1"}
    for argv in commands(heading):
        cluster.run(*(others.get(part, part) for part in argv))
        yield


@pytest.mark.parametrize("heading", ROTATED)
def test_a_secret_is_made_new_while_pods_come(steady: Cluster, heading: str) -> None:
    cluster = steady
    before, refused = secrets(cluster), 0
    made: list[str] = []
    for _ in type_commands(cluster, heading):
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
    assert cluster.denied_calls() == []
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


def test_a_drained_node_gives_its_slices_back_and_takes_pods_again(installed: Cluster) -> None:
    cluster = installed
    create(cluster, "drained")
    wait_until_runs(cluster, "drained")
    live = "SELECT count(*) FROM allocations WHERE ended_at IS NULL"
    assert sql(cluster, live) != "0"

    drained, again = commands("Draining a node")
    cluster.run(*(NODE if part == "NODE" else part for part in drained))
    cluster.wait(lambda: sql(cluster, live) == "0", "the slices are free")
    create(cluster, "again")
    assert not runs(cluster, "again")
    cluster.run(*(NODE if part == "NODE" else part for part in again))
    wait_until_runs(cluster, "again")
    assert cluster.denied_calls() == []


def test_a_backup_is_made_and_restored_while_pods_run(installed: Cluster) -> None:
    cluster = installed
    cluster.sh("kubectl", "apply", "--kustomize", str(cluster.single("backup")))
    for name in ("kept", "ended"):
        create(cluster, name)
        wait_until_runs(cluster, name)
    for _ in type_commands(cluster, "Backups"):
        pass
    cluster.sh("kubectl", "delete", "pod", "ended", "--grace-period=1")
    create(cluster, "came")
    wait_until_runs(cluster, "came")
    began = {name: identity(cluster, name) for name in ("kept", "came")}

    for _ in type_commands(cluster, "Restoring the newest dump"):
        pass

    create(cluster, "afterwards")
    wait_until_runs(cluster, "afterwards")
    pods = cluster.pods.objects.get(PODS)["items"]
    names = " ".join(sorted(pod["metadata"]["name"] for pod in pods))
    live = (
        "SELECT string_agg(pod_name, ' ' ORDER BY pod_name COLLATE \"C\")"
        " FROM allocations WHERE ended_at IS NULL"
    )
    cluster.wait(
        lambda: sql(cluster, live) == names, "ledger = pods", why=lambda: sql(cluster, live)
    )
    assert {name: identity(cluster, name) for name in began} == began
    assert cluster.denied_calls() == []


def spoil(cluster: Cluster) -> None:
    """Make every certificate invalid, as after two thirds of its life."""
    for name in ("hami-ca", *sorted(TLS)):
        body = json.dumps({"data": {"tls.crt": ""}})
        # With a warning, which is right.
        cluster.run("kubectl", "-n", NAMESPACE, "patch", "secret", name, "-p", body)


def test_accounts_have_the_rights_that_they_use_and_no_other(installed: Cluster) -> None:
    """After it nothing is placed: the authority that everybody trusted is gone."""
    cluster = installed
    create(cluster, "stays")
    wait_until_runs(cluster, "stays")
    spoil(cluster)
    renew = ("create", "job", "due", "--from=cronjob/hami-webhook-certificate")
    cluster.sh("kubectl", "-n", NAMESPACE, *renew)
    cluster.wait(lambda: job_is_done(cluster, "due"), "the CronJob renews what is due")
    spoil(cluster)
    cluster.run("kubectl", "-n", NAMESPACE, "delete", "job", "-lapp.kubernetes.io/part-of=hami")
    cluster.run("kubectl", "apply", "--kustomize", str(cluster.single()))
    finished = ("--for=condition=Complete", "--timeout=300s", "-lapp.kubernetes.io/part-of=hami")
    cluster.run("kubectl", "-n", NAMESPACE, "wait", *finished, "job")

    rights, made = list_granted_rights(cluster.api), calls(cluster.folder / "audit.log")
    unused = {right for right in rights if not any(call.needs(right) for call in made)}
    elsewhere = {
        right
        for right in unused
        if (right.account, right.verb, right.resource) in USED_IN_OTHER_TESTS
    }
    assert cluster.denied_calls() == []
    assert sorted(map(str, unused - elsewhere)) == []
    assert USED_IN_OTHER_TESTS.keys() <= {(r.account, r.verb, r.resource) for r in rights}
    for case in USED_IN_OTHER_TESTS.values():
        file, _, name = case.partition("::")
        assert f"def {name}(" in (PROJECT / file).read_text(), case
    missed = denied_without(Mutants(cluster.api), rights - unused, rights, made, cluster.wait)
    measured.note(
        f"RBAC: {len(rights)} rights of our accounts, {len(unused)} of them used by faults alone;"
        f" without each of {len(rights - unused)}, {missed} of {len(made)} kinds of calls denied"
    )


def test_nothing_is_left_of_it_in_the_cluster_and_on_its_hosts(
    installed: Cluster, began: tuple[object, object]
) -> None:
    cluster = installed
    running = [p["metadata"]["name"] for p in cluster.pods.objects.get(PODS)["items"]]
    steps = type_commands(cluster, "Removing it")
    next(steps)
    next(steps)
    assert running, began
    held = "pods that hold slices: default/"
    cluster.wait(lambda: held in waits_for(), "the agent's removal waits", why=waits_for)
    assert all(runs(cluster, name) for name in running)
    assert Path("/usr/local/vgpu/containers").is_dir()
    for name in running:
        cluster.sh("kubectl", "delete", "pod", name, "--grace-period=1")
    for _ in steps:
        pass

    assert cluster.denied_calls() == []
    kinds = cluster.sh("kubectl", "api-resources", "--verbs=list", "-o", "name").stdout.split()
    # The two with a deprecation's warning hold nothing of their own.
    skipped = ("events", "componentstatuses", "endpoints")
    listed = ",".join(kind for kind in kinds if not kind.startswith(skipped))
    names = cluster.sh("kubectl", "get", listed, "-A", "-o", "name").stdout.split()
    # The RBAC case's own.
    left = [name for name in names if "hami" in name and "hami-mutant-" not in name]
    assert left == []
    for node in cluster.pods.objects.get("/api/v1/nodes")["items"]:
        notes = {**node["metadata"].get("annotations", {}), **node["metadata"].get("labels", {})}
        assert [key for key in notes if "hami.io" in key or key == "gpu"] == []
        assert not node["metadata"].get("finalizers")
    layers = [each for n in (0, 1) for each in (cluster.folder / f"upper-{n}").iterdir()]
    # A whiteout is what the machine itself had before, and has not in this layer.
    written = [each.name for each in layers if not each.is_char_device()]
    assert written == [], "left in /usr/local or /var/lib"
    assert list((cluster.folder / "host" / "var" / "run" / "cdi").iterdir()) == []
    kubelet = {each.name for each in (cluster.folder / "kubelet").rglob("*.sock")}
    assert {name for name in kubelet if name != "kubelet.sock"} == set()


def waits_for() -> str:
    """Return the reason that the removal on the node reports; empty while it does not serve."""
    try:
        answer = httpx.get("http://127.0.0.1:9394/readyz", timeout=5)
    except httpx.HTTPError:
        return ""
    return str(answer.json().get("reason", ""))
