"""Rights to label namespaces with hami.io/, and to run pods in the system's namespace."""

import copy
import uuid

import pytest
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import (
    SYSTEM,
    TENANTS,
    Guarded,
    User,
    is_allowed,
    is_refused,
    manifests,
)

NAMESPACE = f"/api/v1/namespaces/{TENANTS}"
SYSTEM_PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
DAEMON_SETS = "system:serviceaccount:kube-system:daemon-set-controller"


def label(key: str, value: str | None) -> Json:
    return {"metadata": {"labels": {key: value}}}


@pytest.fixture(scope="module")
def owner(guarded: Guarded) -> User:
    """User that makes and changes namespaces, as tenants' administrators do in some clusters."""
    parts = ["namespaces", "namespaces/status", "namespaces/finalize"]
    guarded.bind(guarded.role("namespace-owner", parts, ["*"]), "User", "olga")
    return guarded.person("olga")


@pytest.mark.parametrize("key", ["hami.io/webhook", "hami.io/metrics", "hami.io/operators"])
def test_an_owner_of_namespaces_opens_none_to_the_system(owner: User, key: str) -> None:
    value = "ignore" if key == "hami.io/webhook" else "enabled"
    sentence = f"olga may not change these labels of a namespace: {key}"

    assert is_refused(owner.patch(NAMESPACE, label(key, value)), sentence)
    assert is_refused(owner.patch(f"{NAMESPACE}/status", label(key, value)), sentence)
    made = {"metadata": {"name": "opened", "labels": {key: value}}}
    assert is_refused(owner.post("/api/v1/namespaces", made), sentence)


def test_an_owner_of_namespaces_has_all_other_labels(guarded: Guarded, owner: User) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{name}"
    assert is_allowed(owner.post("/api/v1/namespaces", {"metadata": {"name": name}}))
    assert is_allowed(owner.patch(path, label("team", "a")))
    assert is_allowed(guarded.admin.patch(path, label("hami.io/webhook", "ignore")))
    # The administrator's label stays, and does not hinder other changes.
    assert is_allowed(owner.patch(path, label("team", "b")))
    assert is_refused(owner.patch(path, label("hami.io/webhook", None)), "hami.io/webhook")


def test_who_holds_the_role_labels_namespaces(guarded: Guarded, owner: User) -> None:
    role = guarded.role("namespace-patcher", ["namespaces"], ["patch"])
    for each in (role, "hami-namespace-labeller"):
        guarded.bind(each, "User", "lena")

    labeller = guarded.person("lena")
    for value in ("enabled", None):
        assert is_allowed(labeller.patch(NAMESPACE, label("hami.io/metrics", value)))


def templates() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for each in manifests():
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            found[each["metadata"]["name"]] = spec["template"]
            # Its controller makes a volume of each claim.
            volumes = spec["template"]["spec"].setdefault("volumes", [])
            for claim in spec.get("volumeClaimTemplates", ()):
                volumes.append({"name": claim["metadata"]["name"], "emptyDir": {}})
    return found


RESTRICTED = sorted(set(templates()) - {"hami-node-agent"})


def pod_of(name: str, owner: str = "") -> Json:
    """Build the pod that its controller would make; `owner`: the name of a DaemonSet."""
    template = copy.deepcopy(templates()[name])
    metadata = template.get("metadata", {}) | {"generateName": f"{name}-"}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner}
        metadata["ownerReferences"] = [reference | {"uid": str(uuid.uuid4()), "controller": True}]
    return {"metadata": metadata, "spec": template["spec"]}


@pytest.mark.parametrize("name", RESTRICTED)
def test_every_part_but_the_agent_is_as_restricted_asks(guarded: Guarded, name: str) -> None:
    """By the API server's own Pod Security admission, and by our policy."""
    strict = {
        "metadata": {
            "name": "restricted",
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        }
    }
    guarded.make("/api/v1/namespaces", strict)

    for namespace in ("restricted", SYSTEM):
        path = f"/api/v1/namespaces/{namespace}/pods"
        assert is_allowed(guarded.admin.post(path, pod_of(name), dryRun="All")), namespace


def test_the_agent_runs_as_its_daemon_sets_pods_alone(guarded: Guarded) -> None:
    agent = pod_of("hami-node-agent", owner="hami-node-agent")
    controller = guarded.person(DAEMON_SETS, "system:masters")

    assert is_allowed(controller.post(SYSTEM_PODS, agent, dryRun="All"))
    assert is_refused(guarded.admin.post(SYSTEM_PODS, agent, dryRun="All"), "of its host")
    other = pod_of("hami-node-agent", owner="mine")
    assert is_refused(controller.post(SYSTEM_PODS, other, dryRun="All"), "of its host")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hostPID": True}, "of its host"),
        ({"hostNetwork": True}, "of its host"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "of its host"),
        ({"securityContext": {}}, "without root"),
        ({"securityContext": {"runAsNonRoot": True}}, "seccomp"),
    ],
    ids=["pid", "network", "folder", "root", "seccomp"],
)
def test_a_pod_of_the_system_that_is_not_restricted_is_refused(
    guarded: Guarded, change: Json, text: str
) -> None:
    pod = pod_of("hami-metrics")
    added = change.get("volumes", [])
    pod["spec"] |= change | {"volumes": [*pod["spec"]["volumes"], *added]}

    assert is_refused(guarded.admin.post(SYSTEM_PODS, pod, dryRun="All"), text)


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"privileged": True},
        {"allowPrivilegeEscalation": False},
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}},
    ],
    ids=["none", "privileged", "capabilities kept", "capability added"],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_container_of_the_system_that_is_not_restricted_is_refused(
    guarded: Guarded, kind: str, context: Json
) -> None:
    pod = pod_of("hami-metrics")
    bare = {"name": "bare", "image": "none", "securityContext": context}
    pod["spec"][kind] = [*pod["spec"].get(kind, []), bare]

    assert is_refused(guarded.admin.post(SYSTEM_PODS, pod, dryRun="All"), "drops all capabilities")


def test_a_debug_container_in_the_system_is_restricted_too(guarded: Guarded) -> None:
    held = guarded.pod("debugged", SYSTEM)
    path = f"{SYSTEM_PODS}/debugged/ephemeralcontainers"
    bare = {"name": "shell", "image": "none", "targetContainerName": "c"}
    held["spec"]["ephemeralContainers"] = [bare]

    assert is_refused(guarded.admin.put(path, held), "drops all capabilities")
    bare["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # type: ignore[assignment]
    assert is_allowed(guarded.admin.put(path, held))
