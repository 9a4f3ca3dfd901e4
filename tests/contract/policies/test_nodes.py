"""Changes of Nodes and of their pods that a node-agent's and the scheduler's token may make."""

from collections.abc import Iterator

import pytest
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import SYSTEM, Guarded, User, is_allowed, is_refused

OWN, OTHER = "/api/v1/nodes/node-a", "/api/v1/nodes/node-b"
CARDS = {
    "hami.io/node-agent": "hami-node-agent",
    "hami.io/node-nvidia-register": "[]",
    "hami.io/node-nvidia-score": "[]",
    "hami.io/binding": "lock",
}


def annotations(**written: str | None) -> Json:
    return {"metadata": {"annotations": {k.replace("__", "/"): v for k, v in written.items()}}}


@pytest.fixture(scope="module")
def agent(guarded: Guarded) -> Iterator[User]:
    """Agent of node-a with far more rights than its role has, held by the policy only."""
    for name in ("node-a", "node-b"):
        guarded.node(name, annotations={"hami.io/device-cordon": "GPU-1", "theirs": "1"})
    role = guarded.role("everything", ["nodes", "nodes/status", "pods", "pods/eviction"], ["*"])
    unbind = guarded.bind(role, "ServiceAccount", f"{SYSTEM}:hami-node-agent")
    yield guarded.account(SYSTEM, "hami-node-agent", node="node-a")
    unbind()


def test_an_agent_writes_the_cards_of_its_own_node(agent: User) -> None:
    assert is_allowed(agent.patch(OWN, {"metadata": {"annotations": CARDS}}))
    # Nothing of ours changes: a controller or a kubelet of the node may write the same object.
    assert is_allowed(agent.patch(OWN, {"metadata": {"annotations": CARDS}}))


def test_an_agent_writes_no_other_node(agent: User) -> None:
    assert is_refused(
        agent.patch(OTHER, {"metadata": {"annotations": CARDS}}),
        "the node-agent of node-a changes its own Node, not node-b",
    )


def test_a_token_of_no_pod_is_no_nodes(guarded: Guarded, agent: User) -> None:
    stray = guarded.account(SYSTEM, "hami-node-agent")

    assert is_refused(
        stray.patch(OWN, {"metadata": {"annotations": CARDS}}),
        "the node-agent of no node changes its own Node, not node-a",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": {"unschedulable": True}}, "does not cordon it"),
        ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, "changes no taints"),
        ({"metadata": {"labels": {"gpu": "on"}}}, "labels"),
        ({"metadata": {"finalizers": ["a.b/c"]}}, "finalizers"),
        (annotations(hami__io="x") | annotations(theirs="2"), "not theirs"),
        (annotations(theirs=None), "not theirs"),
        ({"metadata": {"annotations": {"hami.io/device-cordon": ""}}}, "not hami.io/device-cordon"),
        ({"metadata": {"annotations": {"hami.io/mutex.lock": "x"}}}, "not hami.io/mutex.lock"),
        ({"metadata": {"annotations": None}}, "not "),
    ],
    ids=[
        "cordon",
        "taint",
        "label",
        "finalizer",
        "another key",
        "another key removed",
        "its cordoned cards",
        "the scheduler's lock",
        "all annotations removed",
    ],
)
def test_an_agent_changes_nothing_else_of_its_own_node(
    agent: User, change: Json, text: str
) -> None:
    assert is_refused(agent.patch(OWN, change), text)


def test_an_agent_neither_deletes_nor_makes_nodes_nor_reports_their_status(agent: User) -> None:
    assert is_refused(agent.delete(OWN), "makes and deletes no Nodes")
    assert is_refused(
        agent.post("/api/v1/nodes", {"metadata": {"name": "made"}}), "makes and deletes no Nodes"
    )
    change = {"status": {"capacity": {"nvidia.com/gpu": "99"}}}
    assert is_refused(agent.patch(f"{OWN}/status", change), "sums of its cards: not nvidia.com/gpu")


def test_an_agent_ends_pods_of_its_own_node_alone(guarded: Guarded, agent: User) -> None:
    for name, node in (("here", "node-a"), ("there", "node-b"), ("nowhere", "")):
        guarded.pod(name, node=node)
    path = "/api/v1/namespaces/tenants/pods"

    assert is_refused(agent.delete(f"{path}/there"), "ends pods of its own node, not of node-b")
    assert is_refused(agent.delete(f"{path}/nowhere"), "not of none")
    assert is_allowed(agent.delete(f"{path}/here"))


def test_an_agent_makes_changes_and_evicts_no_pod(guarded: Guarded, agent: User) -> None:
    pod = guarded.pod("kept", node="node-a")
    path = "/api/v1/namespaces/tenants/pods"

    assert is_refused(agent.patch(f"{path}/kept", annotations(a="b")), "makes, changes, binds and")
    body = {"metadata": {"name": "new"}, "spec": pod["spec"]}
    assert is_refused(agent.post(path, body), "makes, changes")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "kept", "namespace": "tenants"},
    }
    assert is_refused(agent.post(f"{path}/kept/eviction", eviction), "evicts no pods")


def event(name: str, **changes: object) -> Json:
    """Build an event as the agent of node-a makes it."""
    body: Json = {
        "metadata": {"name": name, "namespace": "tenants"},
        "involvedObject": {"kind": "Pod", "name": "kept", "namespace": "tenants"},
        "type": "Warning",
        "reason": "Tried",
        "source": {"component": "hami-node-agent", "host": "node-a"},
    }
    return body | changes


def test_an_agent_speaks_for_its_own_node_in_events(guarded: Guarded, agent: User) -> None:
    path = "/api/v1/namespaces/tenants/events"
    assert is_allowed(agent.post(path, event("own")))

    other = {"component": "hami-node-agent", "host": "node-b"}
    scheduler = {"component": "hami-scheduler", "host": "node-a"}
    for forged in ({"source": other}, {"source": scheduler}, {"source": {}}, {"type": "Normal"}):
        assert is_refused(
            agent.post(path, event("forged", **forged)), "of its own node, here node-a"
        )
    stray = guarded.account(SYSTEM, "hami-node-agent")
    assert is_refused(stray.post(path, event("stray")), "here none")


@pytest.fixture(scope="module")
def scheduler(guarded: Guarded, agent: User) -> User:
    return guarded.account(SYSTEM, "hami-scheduler")


@pytest.mark.parametrize(
    "key",
    [
        "hami.io/mutex.lock",
        "hami.io/node-handshake",
        "hami.io/node-handshake-dcu",
        "cambricon.com/dsmlu.lock",
    ],
)
def test_the_scheduler_locks_and_asks_nodes(scheduler: User, key: str) -> None:
    for value in ("2026-01-01T00:00:00Z", None):
        assert is_allowed(scheduler.patch(OTHER, {"metadata": {"annotations": {key: value}}}))


def test_the_scheduler_adds_the_label_that_placeholders_exclude_nodes_by(scheduler: User) -> None:
    def hostname_label(value: str | None) -> Json:
        return {"metadata": {"labels": {"hami.io/hostname": value}}}

    assert is_allowed(scheduler.patch(OTHER, hostname_label("node-b")))
    for changed in ("another", None):
        assert is_refused(
            scheduler.patch(OTHER, hostname_label(changed)), "adds the label hami.io/hostname"
        )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": {"unschedulable": True}}, "cordons none"),
        ({"metadata": {"labels": {"gpu": "on"}}}, "labels"),
        ({"metadata": {"annotations": {"hami.io/node-agent": "x"}}}, "not hami.io/node-agent"),
        ({"metadata": {"annotations": {"theirs": None}}}, "not theirs"),
    ],
    ids=["cordon", "label", "whose cards", "another key removed"],
)
def test_the_scheduler_changes_nothing_else_of_nodes(
    scheduler: User, change: Json, text: str
) -> None:
    assert is_refused(scheduler.patch(OTHER, change), text)


def test_kubelets_and_administrators_change_nodes_as_before(guarded: Guarded, agent: User) -> None:
    kubelet = guarded.person("system:node:node-a", "system:nodes")

    assert is_allowed(kubelet.patch(f"{OWN}/status", {"status": {"capacity": {"cpu": "4"}}}))
    assert is_allowed(kubelet.patch(OWN, {"metadata": {"labels": {"a": "b"}}}))
    assert is_allowed(guarded.admin.patch(OWN, {"spec": {"unschedulable": True}}))
    assert is_allowed(guarded.admin.patch(OWN, {"spec": {"unschedulable": None}}))
