"""Changes of ResourceSlices that a node-agent's token may make, by the component `dra`."""

from pathlib import Path

import pytest
import yaml
from hami_node_agent.dra.slices import wanted_slice
from hamicommon.dra.devices import DRIVER
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import PLURALS, SYSTEM, Guarded, User, is_allowed, is_refused
from tests.control_plane import Assets
from tests.waiting import wait

COMPONENT = Path(__file__).parents[3] / "k8s" / "components" / "dra"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def a_slice(name: str, *, node: str = "node-a", driver: str = DRIVER) -> Json:
    """Build a slice as an agent writes it, under this name and driver."""
    body = wanted_slice(node, "uid", [], None)
    assert body is not None
    del body["metadata"]["ownerReferences"]
    body["metadata"]["name"], body["spec"]["driver"] = name, driver
    return body


@pytest.fixture(scope="module")
def agent(guarded: Guarded, kubernetes_assets: Assets) -> User:
    """Agent of node-a with the component's own role."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    for file in ("access.yaml", "policy.yaml"):
        for body in yaml.safe_load_all((COMPONENT / file).read_text()):
            guarded.make(PLURALS[body["kind"]], body)
    account = guarded.account(SYSTEM, "hami-node-agent", node="node-a")
    wait(lambda: account.get(SLICES).status_code == 200, "the agent's role")
    probe = a_slice("probe", node="other")
    wait(
        lambda: account.post(SLICES, probe, dryRun="All").status_code == 403,
        "the policy holds",
    )
    return account


def test_an_agent_writes_the_slices_of_its_own_node(agent: User) -> None:
    made = agent.post(SLICES, a_slice("own"))
    assert is_allowed(made)
    body = made.json()
    body["spec"]["pool"]["generation"] = 2
    assert is_allowed(agent.put(f"{SLICES}/own", body))
    assert is_allowed(agent.delete(f"{SLICES}/own"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(a_slice("theirs", node="node-b"), id="another node's"),
        pytest.param(a_slice("theirs", driver="gpu.example.com"), id="another driver's"),
    ],
)
def test_an_agent_writes_no_others(agent: User, body: Json) -> None:
    assert is_refused(agent.post(SLICES, body), "a node-agent of node node-a may only write")


def test_an_agent_deletes_no_others(guarded: Guarded, agent: User) -> None:
    assert is_allowed(guarded.admin.post(SLICES, a_slice("b-s", node="node-b")))
    assert is_refused(agent.delete(f"{SLICES}/b-s"), "a node-agent of node node-a may only write")
    assert is_allowed(guarded.admin.delete(f"{SLICES}/b-s"))


def test_a_token_of_no_pod_is_no_nodes(guarded: Guarded, agent: User) -> None:
    del agent
    stray = guarded.account(SYSTEM, "hami-node-agent")
    assert is_refused(stray.post(SLICES, a_slice("stray")), "may only write")
