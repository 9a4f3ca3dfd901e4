"""The grant that the agent names when it reports that a pod left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hami_node_agent.cleanup.garbage_collection import Sweeper
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.errors import Unavailable

from tests.unit.node_agent.builders import CARD_A, a_book, a_grant, a_holding, a_record

IDS = {f"{CARD_A}-0"}
OTHER = a_grant(pod="other", token=5)
GONE = a_grant(pod="gone", token=9)
SECOND = replace(GONE, allocation_id=AllocationId("second attempt"), token=12)


@dataclass
class Node:
    """A node on which no pod is left."""

    held: tuple[Holding, ...] = ()
    kept: frozenset[tuple[str, str]] = frozenset()
    """Pods that the kubelet has, by namespace and name."""
    claimed_nonces: frozenset[str] | None = frozenset()
    """Slices that its pods have by claims; None: there is no answer."""
    live: bool = True
    runs: bool = False
    """Processes of every pod are seen."""
    object_there: bool | None = None
    """The API server has every pod; None: those without a name."""
    removed: list[str] = field(default_factory=list)
    """Nonces whose directories went."""

    def save(self, state: AgentState) -> None:
        """Do nothing."""

    def knows(self, pod_uid: str) -> bool:
        del pod_uid
        return False

    def uid_of(self, namespace: str, name: str) -> str:
        del namespace, name
        return ""

    async def still_there(self, *, namespace: str, name: str, pod_uid: str) -> bool:
        del namespace, pod_uid
        return not name if self.object_there is None else self.object_there

    async def pods(self) -> frozenset[tuple[str, str]]:
        return self.kept

    async def claim_nonces(self) -> frozenset[str]:
        if self.claimed_nonces is None:
            raise Unavailable("no such socket")
        return self.claimed_nonces

    async def holdings(self) -> tuple[Holding, ...]:
        return self.held

    def has_processes(self, pod_uid: str) -> bool:
        del pod_uid
        return self.runs

    def remove_pod(self, cache_dirs: Iterable[str], nonces: Iterable[str]) -> None:
        del cache_dirs
        self.removed += nonces


async def swept(
    node: Node, *records: Record, grants: tuple[NodeGrant, ...], whole: bool = True, times: int = 1
) -> NodeState:
    state = NodeState(node, AgentState().with_records(records))
    state.book = replace(a_book(*grants), whole=whole)
    sweeper = a_sweeper(node, state)
    for _ in range(times):
        await sweeper.sweep()
    return state


def a_sweeper(node: Node, state: NodeState) -> Sweeper:
    port: Any = node
    return Sweeper(
        state,
        pods=port,
        kubelet_state=port,
        processes=port,
        files=port,
        reports=Reports("n"),
        interval_s=1.0,
    )


def list_reported(state: NodeState) -> list[str]:
    return [orjson.loads(report.body)["allocation_id"] for report in state.saved.reports]


# As an agent of an earlier release wrote it: another pod's answer, which the pod had taken.
LOST = replace(
    a_record(OTHER, ids=IDS),
    pod_uid=PodUid("gone"),
    pod_name="gone",
    allocation_id=AllocationId(""),
)


@pytest.mark.parametrize("state", [AllocationState.BINDING, AllocationState.RELEASING])
async def test_a_pod_that_only_took_anothers_answer_leaves_under_its_own_grant(
    state: AllocationState,
) -> None:
    after = await swept(Node(), LOST, grants=(replace(GONE, state=state),))

    assert list_reported(after) == [GONE.allocation_id]
    assert not after.saved.records


@pytest.mark.parametrize("latest", ["record", "grant"])
async def test_of_two_attempts_of_a_pod_the_latest_is_meant(latest: str) -> None:
    record, grant = (SECOND, GONE) if latest == "record" else (GONE, SECOND)

    after = await swept(Node(), a_record(record, ids=IDS), grants=(grant,))

    assert list_reported(after) == [SECOND.allocation_id]


async def test_a_pod_of_which_only_the_uid_is_known_stays_while_the_kubelet_has_it() -> None:
    nameless = replace(LOST, namespace="", pod_name="")

    after = await swept(Node(held=(a_holding("gone", ids=IDS),)), nameless, grants=())
    assert after.saved.records

    after = await swept(Node(), nameless, grants=())
    assert not after.saved.records
    assert not list_reported(after)


async def test_a_pod_that_runs_on_after_its_grant_ended_is_reported_once() -> None:
    """The grant ended while this node was silent: other pods may hold its cards now."""
    after = await swept(Node(runs=True), a_record(GONE, ids=IDS), grants=(), times=2)

    [report] = [orjson.loads(report.body) for report in after.saved.reports]
    assert (report["kind"], report["allocation_id"]) == ("stays", GONE.allocation_id)
    assert after.saved.records


async def test_a_pod_that_is_over_and_that_its_kubelet_still_has_runs_nothing() -> None:
    """Kubelets keep pods for a while, and the ledger ends a grant when its pod has succeeded."""
    node = Node(kept=frozenset({(GONE.namespace, GONE.pod_name)}), object_there=False)

    after = await swept(node, a_record(GONE, ids=IDS), grants=())

    assert not after.saved.reports
    assert after.saved.records


@pytest.mark.parametrize(
    ("grants", "whole", "object_there"),
    [((GONE,), True, False), ((), False, False), ((), True, True)],
    ids=["its grant lives", "the ledger was not asked yet", "the watch lags"],
)
async def test_a_pod_of_which_it_is_not_known_that_its_grant_ended_is_not_reported(
    grants: tuple[NodeGrant, ...], whole: bool, object_there: bool
) -> None:
    node = Node(runs=True, object_there=object_there)

    after = await swept(node, a_record(GONE, ids=IDS), grants=grants, whole=whole)

    assert not after.saved.reports
    assert after.saved.records


class Asked(Node):
    """A node whose API server answers for one pod and not for another."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def still_there(self, *, namespace: str, name: str, pod_uid: str) -> bool:
        del namespace, name
        self.asked.append(pod_uid)
        if pod_uid == GONE.pod_uid:
            raise Unavailable("403: pods is forbidden")
        return True


async def test_a_pod_that_cannot_be_checked_is_not_asked_for_in_every_round() -> None:
    node = Asked()

    after = await swept(
        node, a_record(GONE, ids=IDS), a_record(OTHER, ids=IDS, nonce="n2"), grants=(), times=20
    )

    assert node.asked.count(GONE.pod_uid) < 5 < node.asked.count(OTHER.pod_uid)
    assert len(after.saved.records) == 2


NONCE = "slices-of-a-claim"
FIRST = replace(GONE, claimed=True, slices=MappingProxyType({"main": NONCE}))
NEXT = replace(OTHER, claimed=True, slices=MappingProxyType({"main": NONCE}))
SHARED = a_record(FIRST, ids=set(), nonce=NONCE)


async def test_what_the_kubelet_has_for_a_second_pod_of_a_claim_stays_till_its_grant_is_known() -> (
    None
):
    """The kubelet starts that pod without asking us; the first one's end may be heard of first."""
    node = Node(claimed_nonces=frozenset({NONCE}))

    state = await swept(node, SHARED, grants=(FIRST,), times=3)

    assert list_reported(state) == [FIRST.allocation_id]
    assert state.book.of(FIRST.pod_uid) is None
    assert (state.saved.records, node.removed) == ({NONCE: SHARED}, [])

    state.book = state.book.with_grant(NEXT)
    sweeper = a_sweeper(node, state)
    await sweeper.sweep()
    [record] = state.saved.records.values()
    assert (record.pod_uid, record.cache_dir) == (NEXT.pod_uid, SHARED.cache_dir)
    assert node.removed == []

    node.claimed_nonces = frozenset()
    await sweeper.sweep()
    assert (dict(state.saved.records), node.removed) == ({}, [NONCE])
    assert list_reported(state) == [FIRST.allocation_id, NEXT.allocation_id]


async def test_a_pod_of_a_claim_leaves_whole_where_the_kubelet_has_its_slices_for_nobody() -> None:
    node = Node(claimed_nonces=frozenset({"of-another-claim"}))

    state = await swept(node, SHARED, grants=(FIRST,))

    assert (dict(state.saved.records), node.removed) == ({}, [NONCE])


async def test_nothing_of_a_claim_is_removed_while_the_kubelet_cannot_be_asked() -> None:
    node = Node(claimed_nonces=None)

    state = await swept(node, SHARED, grants=(FIRST,))

    assert (state.saved.records, node.removed, list_reported(state)) == ({NONCE: SHARED}, [], [])
