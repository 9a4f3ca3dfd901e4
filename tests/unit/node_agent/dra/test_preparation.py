"""Preparation of a claim, whichever of its pods the kubelet has it prepared for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.dra import preparation
from hami_node_agent.dra.preparation import ClaimPreparation, ClaimRef, LostRecords
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.records import (
    AgentState,
    is_complete,
    passed_on,
    pods_sharing,
    shared_records,
)
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.allocations import slices_name
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json

from tests.unit.node_agent.builders import ANSWERS, CARD_A, a_book, a_container, a_share

NONCE = slices_name([("uid-c", "gpu", "share")])
REF = ClaimRef(namespace="ns", name="c", uid="uid-c")


def a_claimed(pod: str, container: str = "main", *, token: int = 1) -> NodeGrant:
    return NodeGrant(
        allocation_id=AllocationId(f"allocation-of-{pod}"),
        pod_uid=PodUid(pod),
        namespace="ns",
        pod_name=pod,
        token=token,
        containers=(a_container(a_share(CARD_A), name=container),),
        claimed=True,
        slices={container: NONCE},
    )


class World:
    """Pods of a claim, and what the agent has put in place for them."""

    def __init__(self, *grants: NodeGrant) -> None:
        store: Any = SimpleNamespace(save=lambda state: None)
        self.state = NodeState(store, AgentState())
        self.state.book = a_book(*grants)
        self.described: list[str] = []
        self.mounts: dict[str, dict[str, str]] = {}
        self.made: list[str] = []
        """Folders that were made, with an empty account."""
        self.claimed: frozenset[str] = frozenset()
        """The kubelet's prepared claims."""
        self.holders = [(grant.pod_uid, grant.containers[0].name) for grant in grants]
        files: Any = SimpleNamespace(
            make_cache_dir=lambda name, nonce: self.made.append(name),
            keep_cache_dir=lambda name, nonce: None,
            write_limits=lambda record: None,
            limits_dir=lambda nonce: Path("/limits"),
        )
        pods: Any = SimpleNamespace(container_env=AsyncMock(return_value={}), warn=AsyncMock())
        kubelet_state: Any = SimpleNamespace(claim_nonces=self._claim_nonces)
        node = NodePorts(
            state=self.state,
            kubelet_state=kubelet_state,
            source=SimpleNamespace(),  # type: ignore[arg-type]  # not asked
            pods=pods,
            files=files,
            reports=Reports("n1"),
        )
        devices: Any = SimpleNamespace(write=self._describe, source_of=self._source_of)
        slices = DescribedSlices(node, devices=devices, answers=ANSWERS)
        api: Any = SimpleNamespace(claim=self._claim, pod=self._pod)
        self.preparation = ClaimPreparation(
            node,
            slices,
            api=api,
            bus=SimpleNamespace(),  # type: ignore[arg-type]  # all grants are known
            node_name="n1",
        )
        self.lost = LostRecords(node, slices)

    def _describe(self, nonce: str, spec: ContainerSpec) -> None:
        self.described.append(nonce)
        self.mounts.setdefault(nonce, {m.container_path: m.host_path for m in spec.mounts})

    def _source_of(self, nonce: str, container_path: str) -> str:
        return self.mounts.get(nonce, {}).get(container_path, "")

    async def _claim_nonces(self) -> frozenset[str]:
        return self.claimed

    async def _claim(self, namespace: str, name: str) -> Json:
        result = {
            "request": "gpu",
            "driver": DRIVER,
            "pool": "n1",
            "device": "gpu-a",
            "shareID": "share",
            "consumedCapacity": {"memory": "4Gi"},
        }
        return {
            "metadata": {"namespace": namespace, "name": name, "uid": "uid-c"},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [
                    {"resource": "pods", "name": uid, "uid": uid} for uid, _ in self.holders
                ],
            },
        }

    async def _pod(self, namespace: str, name: str) -> Json:
        container = dict(self.holders)[PodUid(name)]
        return {
            "metadata": {"namespace": namespace, "name": name, "uid": name},
            "spec": {
                "nodeName": "n1",
                "resourceClaims": [{"name": "card", "resourceClaimName": "c"}],
                "containers": [{"name": container, "resources": {"claims": [{"name": "card"}]}}],
            },
        }

    async def lose_the_state(self) -> None:
        await self.state.change(lambda saved: AgentState())

    def report_ids(self) -> list[str]:
        return [report.report_id for report in self.state.saved.reports]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "SETTLE_S", 0)


async def test_all_pods_of_a_claim_get_one_device_with_one_description() -> None:
    world = World(a_claimed("p"), a_claimed("q", "other"))
    [device] = await world.preparation.prepare(REF)
    assert device.cdi_devices == (f"hami.io/slice={NONCE}",)
    assert set(world.described) == {NONCE}
    assert list(world.state.saved.records) == [NONCE]
    assert sorted(world.report_ids()) == [f"allocation-of-{pod}:1:allocated" for pod in "pq"]
    again = await world.preparation.prepare(REF)
    assert again == (device,)
    assert list(world.state.saved.records) == [NONCE]


async def test_a_pod_that_is_over_or_elsewhere_is_not_prepared_for() -> None:
    world = World(a_claimed("p"))
    world.holders = []
    with pytest.raises(NotFound, match="reserved for no pod of this node"):
        await world.preparation.prepare(REF)


async def test_what_is_there_is_answered_under_its_own_name() -> None:
    world = World(a_claimed("p"))
    await world.preparation.prepare(REF)
    # After the first one's end the kubelet has it prepared for the next.
    world.state.book = a_book(a_claimed("q", "other"))
    world.holders = [(PodUid("q"), "other")]
    [device] = await world.preparation.prepare(REF)
    assert device.cdi_devices == (f"hami.io/slice={NONCE}",)


async def test_a_record_goes_on_as_that_of_the_next_holder_when_its_grant_ends() -> None:
    first, second = a_claimed("p"), a_claimed("q", "other")
    world = World(first, second)
    await world.preparation.prepare(REF)
    saved = world.state.saved
    assert shared_records(saved.records, world.state.book) == {("q", "other"): ("p", "main")}
    assert pods_sharing(saved.records, world.state.book) == {NONCE: {"p", "q"}}
    assert passed_on(saved, world.state.book) == saved
    assert is_complete(second, saved.records.values())

    left = a_book(second)
    after = passed_on(saved, left)
    [record] = after.records.values()
    assert record.belongs_to("q", "other")
    assert (record.nonce, record.cache_dir) == (NONCE, saved.records[NONCE].cache_dir)
    assert (shared_records(after.records, left), pods_sharing(after.records, left)) == ({}, {})
    assert passed_on(after, GrantBook()) == after


async def test_records_of_prepared_claims_are_made_again_when_the_state_is_lost() -> None:
    first, second = a_claimed("p"), a_claimed("q", "other")
    world = World(first, second)
    await world.preparation.prepare(REF)
    # The first one's record went on as the second's, and kept its folder.
    world.state.book = a_book(second)
    await world.state.change(lambda saved: passed_on(saved, world.state.book))
    before = world.state.saved.records
    await world.lose_the_state()

    world.claimed = frozenset({NONCE})
    await world.lost.take_up()

    assert world.state.saved.records == before
    assert [record.cache_dir for record in before.values()] == ["p_main"]
    # The account that its processes use was not made again.
    assert world.made == ["p_main"]


async def test_a_claim_that_is_prepared_again_without_its_record_keeps_its_account() -> None:
    world = World(a_claimed("p"))
    await world.preparation.prepare(REF)
    before = world.state.saved.records
    await world.lose_the_state()

    await world.preparation.prepare(REF)

    assert world.state.saved.records == before
    assert world.made == ["p_main"]


async def test_what_the_kubelet_has_not_or_nobody_described_is_not_recorded() -> None:
    world = World(a_claimed("p"))
    await world.preparation.prepare(REF)
    await world.lose_the_state()
    await world.lost.take_up()
    assert not world.state.saved.records

    world.claimed, world.mounts = frozenset({NONCE}), {}
    await world.lost.take_up()
    assert not world.state.saved.records
