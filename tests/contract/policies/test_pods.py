"""Rights to change the annotations that the scheduler wrote on a pod."""

import uuid

import pytest
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import SYSTEM, TENANTS, Guarded, User, is_allowed, is_refused

PODS = f"/api/v1/namespaces/{TENANTS}/pods"
PLACED = {
    "hami.io/grant": "signed",
    "hami.io/vgpu-node": "node-p",
    "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,4096,30:;",
    "hami.io/gpu-scheduler-policy": "spread",
    "predicate-time": "1",
    "theirs": "1",
}


def annotate(key: str, value: str | None) -> Json:
    return {"metadata": {"annotations": {key: value}}}


@pytest.fixture(scope="module")
def tenant(guarded: Guarded) -> User:
    """May do everything with pods, and even bind them."""
    guarded.node("node-p")
    parts = ["pods", "pods/binding", "bindings"]
    guarded.bind(guarded.role("pods-and-parts", parts, ["*"]), "User", "ann")
    return guarded.person("ann")


@pytest.fixture
def pod(guarded: Guarded) -> str:
    """The path of one that the scheduler placed."""
    name = f"p-{uuid.uuid4().hex[:8]}"
    guarded.pod(name, node="node-p", annotations=PLACED, labels={"hami.io/vgpu-node": "node-p"})
    return f"{PODS}/{name}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hami.io/grant", "forged"),
        ("hami.io/grant", None),
        ("hami.io/vgpu-node", "node-x"),
        ("hami.io/vgpu-devices-allocated", "GPU-1,NVIDIA,81920,100:;"),
        ("hami.io/vgpu-devices-to-allocate", "GPU-1,NVIDIA,81920,100:;"),
        ("hami.io/bind-phase", "success"),
        ("hami.io/retry-at", "now"),
        ("hami.io/traceparent", "00-1-1-01"),
        ("hami.io/of-a-later-version", "x"),
        ("huawei.com/Ascend910A", "Ascend910A-0"),
        ("predicate-time", "2"),
    ],
)
def test_a_tenant_changes_nothing_that_the_scheduler_wrote(
    tenant: User, pod: str, key: str, value: str | None
) -> None:
    sentence = f"ann may not change what hami-scheduler wrote on the pod: {key}"

    assert is_refused(tenant.patch(pod, annotate(key, value)), sentence)


def test_a_tenant_gets_no_further_by_replacing_applying_or_clearing(tenant: User, pod: str) -> None:
    held: Json = tenant.get(pod).json()
    held["metadata"]["annotations"]["hami.io/grant"] = "forged"
    name = held["metadata"]["name"]
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": PLACED}}
    applied["metadata"]["annotations"] |= {"hami.io/bind-phase": "failed"}  # type: ignore[index]

    assert is_refused(tenant.put(pod, held), "hami.io/grant")
    assert is_refused(tenant.apply(pod, applied), "hami.io/bind-phase")
    assert is_refused(tenant.patch(pod, {"metadata": {"annotations": None}}), "hami.io/vgpu-node")


@pytest.mark.parametrize("value", ["node-x", None])
def test_a_tenant_changes_not_the_label_of_the_node(
    tenant: User, pod: str, value: str | None
) -> None:
    change = {"metadata": {"labels": {"hami.io/vgpu-node": value}}}

    assert is_refused(tenant.patch(pod, change), "the label hami.io/vgpu-node")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hami.io/gpu-scheduler-policy", "binpack"),
        ("hami.io/use-Ascend910A-uuid", "x"),
        ("nvidia.com/use-gputype", "A100"),
        ("theirs", None),
        ("kubectl.kubernetes.io/restartedAt", "now"),
    ],
)
def test_a_tenant_writes_what_is_its_own(
    tenant: User, pod: str, key: str, value: str | None
) -> None:
    assert is_allowed(tenant.patch(pod, annotate(key, value)))
    assert is_allowed(tenant.patch(pod, {"metadata": {"labels": {"a": "b"}}}))


def test_keys_of_other_vendors_are_nobodys_on_a_pod_that_was_not_placed_here(
    guarded: Guarded, tenant: User
) -> None:
    """Volcano writes `predicate-time` too."""
    guarded.pod("volcanos", annotations={"predicate-time": "1"})

    assert is_allowed(tenant.patch(f"{PODS}/volcanos", annotate("predicate-time", "2")))
    assert is_allowed(tenant.delete(f"{PODS}/volcanos"))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_binding_carries_no_annotation_of_ours_but_the_schedulers(
    guarded: Guarded, tenant: User, legacy: bool
) -> None:
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    name = f"unbound-{legacy}".lower()
    guarded.pod(name)
    path = f"/api/v1/namespaces/{TENANTS}/bindings" if legacy else f"{PODS}/{name}/binding"

    def binding(annotations: Json) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-p"},
        }

    assert is_refused(tenant.post(path, binding({"hami.io/grant": "forged"})), "hami.io/grant")
    if legacy:
        assert is_allowed(tenant.post(path, binding({})))
        return
    assert is_allowed(scheduler.post(path, binding({"hami.io/grant": "signed"})))
    bound = tenant.get(f"{PODS}/{name}").json()
    assert bound["metadata"]["annotations"]["hami.io/grant"] == "signed"


def test_the_scheduler_writes_its_annotations_and_its_label(guarded: Guarded, pod: str) -> None:
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    change = {
        "metadata": {
            "annotations": {"hami.io/grant": "signed again", "hami.io/bind-phase": "allocating"},
            "labels": {"hami.io/vgpu-node": "node-q"},
        }
    }

    assert is_allowed(scheduler.patch(pod, change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": {"containers": [{"name": "c", "image": "mine"}]}}, "not their spec"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "not their spec"),
        ({"metadata": {"labels": {"app": "theirs"}}}, "and no other"),
        ({"metadata": {"labels": None}}, ""),
        ({"metadata": {"finalizers": ["a.b/c"]}}, "not their finalizers"),
    ],
    ids=["image", "deadline", "label", "labels", "finalizer"],
)
def test_a_stolen_token_of_the_scheduler_changes_nothing_else_of_a_pod(
    guarded: Guarded, tenant: User, pod: str, change: Json, text: str
) -> None:
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    assert is_allowed(tenant.patch(pod, {"metadata": {"labels": {"app": "mine"}}}))

    assert is_refused(scheduler.patch(pod, change), text)


def test_the_scheduler_ends_pods_that_are_bound_and_have_not_started_and_no_others(
    guarded: Guarded, pod: str
) -> None:
    scheduler = guarded.account(SYSTEM, "hami-scheduler")
    unbound = f"p-{uuid.uuid4().hex[:8]}"
    guarded.pod(unbound)
    text = "hami-scheduler ends pods that are bound and have not started"

    assert is_refused(scheduler.delete(f"{PODS}/{unbound}"), text)
    kubelet = guarded.person("system:node:node-p", "system:nodes")
    assert is_allowed(kubelet.patch(f"{pod}/status", {"status": {"phase": "Running"}}))
    assert is_refused(scheduler.delete(pod), text)
    assert is_allowed(kubelet.patch(f"{pod}/status", {"status": {"phase": "Pending"}}))
    assert is_allowed(scheduler.delete(pod))


def test_device_plugins_of_kube_system_answer_in_annotations(guarded: Guarded, pod: str) -> None:
    role = guarded.role("device-plugin", ["pods"], ["patch"])
    guarded.bind(role, "ServiceAccount", "kube-system:vendor-plugin")
    guarded.bind(role, "ServiceAccount", f"{TENANTS}:vendor-plugin")
    guarded.make("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    change = annotate("hami.io/bind-phase", "success")

    plugin = guarded.account("kube-system", "vendor-plugin", node="node-p")
    assert is_allowed(plugin.patch(pod, change | annotate("hami.io/bind-phase", "failed")))
    elsewhere = guarded.account(TENANTS, "vendor-plugin", node="node-p")
    assert is_refused(elsewhere.patch(pod, change), "vendor-plugin may not change")
    guarded.bind("hami-pod-annotator", "ServiceAccount", f"{TENANTS}:vendor-plugin")
    assert is_allowed(elsewhere.patch(pod, change))


def test_kubelets_and_administrators_are_not_hindered(guarded: Guarded, pod: str) -> None:
    kubelet = guarded.person("system:node:node-p", "system:nodes")
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}

    assert is_allowed(kubelet.patch(f"{pod}/status", running))
    assert is_allowed(guarded.admin.patch(pod, annotate("hami.io/grant", None)))
    assert is_allowed(kubelet.delete(pod))
