"""The rights of the component `node-capacity`: sums of the cards of an agent's own Node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from hami_node_agent.adapters.kubernetes.node import NodeObject
from hami_node_agent.inventory.capacity import keep_capacity, sums_of
from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Forbidden
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.process.shutdown import end

from tests.contract.policies.guarded import PLURALS, SYSTEM, Guarded, User, is_refused
from tests.contract.policies.test_claim_rights import kubeconfig_of
from tests.unit.node_agent.inventory.driver import Driver, facts, tracker_of
from tests.waiting import eventually

ACCESS = Path(__file__).parents[3] / "k8s" / "components" / "node-capacity" / "access.yaml"
MEMORY = "nvidia.com/gpumem"
KUBELETS: Json = {"cpu": "4", "nvidia.com/gpu": "20"}


@pytest.fixture(scope="module")
def agent(guarded: Guarded) -> User:
    """Agent of `sums`, whose kubelet has reported."""
    for name in ("sums", "others"):
        path = guarded.node(name)
        status = {
            "capacity": KUBELETS,
            "allocatable": KUBELETS,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        guarded.admin.patch(f"{path}/status", {"status": status})
    return guarded.account(SYSTEM, "hami-node-agent", node="sums")


@pytest.fixture(scope="module")
def allowed_agent(guarded: Guarded, agent: User) -> Iterator[User]:
    """The same, with the component's rights."""
    role, binding = yaml.safe_load_all(ACCESS.read_text())
    guarded.make(PLURALS[role["kind"]], role)
    [subject] = binding["subjects"]
    name = f"{subject['namespace']}:{subject['name']}"
    unbind = guarded.bind(binding["roleRef"]["name"], subject["kind"], name)
    yield agent
    unbind()


def amounts(guarded: Guarded, part: str) -> Json:
    found: Json = guarded.admin.get("/api/v1/nodes/sums").json()["status"][part]
    return found


async def test_an_agent_reports_sums_with_the_component_alone_and_takes_them_off(
    guarded: Guarded, agent: User, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    driver = Driver()
    driver.listed = tuple(facts(GpuUuid(f"GPU-{index}"), index) for index in range(2))
    cards = await tracker_of(driver, xid_quiet_s=60)
    sums = sums_of(cards.devices(), NvidiaConfig())
    async with open_kube_api(kubeconfig_of(agent, guarded, tmp_path / "kubeconfig")) as api:
        node = NodeObject(api, "sums")
        with pytest.raises(Forbidden):
            await node.set_amounts({**sums})
        request.getfixturevalue("allowed_agent")

        for removes, wanted in ((False, {**sums}), (True, dict.fromkeys(sums))):
            assert not await node.has_amounts(wanted)
            keeping = asyncio.create_task(
                keep_capacity(cards, node, NvidiaConfig(), removes=removes)
            )

            async def is_there(wanted: Mapping[str, int | None] = wanted) -> bool:
                return await node.has_amounts(wanted)

            await eventually(is_there, "the amounts")
            await end([keeping])
            names = set(KUBELETS) if removes else {*KUBELETS, *sums}
            for part in ("capacity", "allocatable"):
                found = amounts(guarded, part)
                assert found.keys() == names
                assert {name: found[name] for name in KUBELETS} == KUBELETS


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"capacity": {"nvidia.com/gpu": "99"}}, "not nvidia.com/gpu"),
        ({"allocatable": {"cpu": "400"}}, "not cpu"),
        ({"capacity": {"cpu": None}}, "not cpu"),
        ({"capacity": None}, "nvidia.com/gpu"),
        ({"conditions": []}, "not conditions"),
        ({"addresses": [{"type": "Hostname", "address": "x"}]}, "not addresses"),
        ({"nodeInfo": {"kubeletVersion": "v9"}}, "not nodeInfo"),
    ],
)
def test_an_agent_writes_nothing_else_of_a_nodes_status(
    allowed_agent: User, status: Json, text: str
) -> None:
    answer = allowed_agent.ask(
        "PATCH",
        "/api/v1/nodes/sums/status",
        {"status": status},
        media="application/merge-patch+json",
    )
    assert is_refused(answer, text)


def test_an_agent_writes_sums_of_no_other_node(allowed_agent: User) -> None:
    change = {"status": {"capacity": {MEMORY: "1"}}}
    answer = allowed_agent.patch("/api/v1/nodes/others/status", change)
    assert is_refused(answer, "the node-agent of sums changes its own Node, not others")
