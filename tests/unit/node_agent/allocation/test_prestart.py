"""A container starts with its own answer, and with no other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hami_node_agent.adapters.state_file import decode, encode
from hami_node_agent.allocation import prestart
from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.node_ports import DescribedSlices
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.allocation.response import AnswerPolicy, container_response, runs_plain
from hami_node_agent.enforcement.judgement import ContainerKey, limits_of
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Holding, KeptAnswer
from hami_node_agent.grants.records import AgentState, PodsSeen, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.allocations import AllocationState, DeviceShare
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, Unavailable

from tests.unit.node_agent.builders import (
    ANSWERS,
    CARD_A,
    CARD_B,
    QuietNode,
    a_book,
    a_card,
    a_container,
    a_foreign_holding,
    a_grant,
    a_holding,
    a_record,
    a_share,
    node_ports,
)
from tests.waiting import PATIENCE_S

IDS_A, IDS_B = frozenset({f"{CARD_A}-0"}), frozenset({f"{CARD_B}-0"})
POD_A = a_grant(a_container(a_share(CARD_A, 4096)), pod="a", token=1)
POD_B = a_grant(a_container(a_share(CARD_B, 8192)), pod="b", token=2)
MEANT_FOR_A = a_record(POD_A, ids=set(IDS_A), nonce="nonce-a")
MEANT_FOR_B = a_record(POD_B, ids=set(IDS_B), nonce="nonce-b")
A_HOLDS_ITS_OWN = a_holding("a", ids=set(IDS_A), record=MEANT_FOR_A)
A_HOLDS_BS = a_holding("a", ids=set(IDS_B), record=MEANT_FOR_B)
PRELOAD = replace(ANSWERS, may_be_plain=True)


class Node(QuietNode):
    """The kubelet's state, the ledger's answer and the limits files of one node."""

    def __init__(self, *held: Holding, binds_late: bool = False) -> None:
        self.held = held
        self.only_listed: tuple[Holding, ...] = ()
        self.checkpoint_damaged = False
        self.both_read = 0
        self.ledger_asked = asyncio.Event()
        self.ledger_answers = asyncio.Event()
        self.ledger_answers.set()
        self.ended: frozenset[PodUid] = frozenset()
        self.unnamed: frozenset[str] = frozenset()
        self.warned: list[tuple[str, str]] = []
        self.limits: dict[str, Record] = {}
        self.described: dict[str, Any] = {}
        self.state = NodeState(self, AgentState().with_records((MEANT_FOR_A, MEANT_FOR_B)))
        self.state.book = a_book(POD_A, POD_B)
        ports = node_ports(self.state, self)
        slices = DescribedSlices(ports, devices=self, answers=PRELOAD)
        late = LateBinding(ports, slices=slices, is_used=binds_late)
        self.starting = PreStart(ports, slices=slices, late=late)

    async def forget(self, *nonces: str) -> None:
        """Lose the agent's state."""
        await self.state.change(lambda saved: saved.without_records(nonces))

    def report_bodies(self) -> list[dict[str, Any]]:
        return [json.loads(report.body) for report in self.state.saved.reports]

    async def checkpointed_holdings(self) -> tuple[Holding, ...]:
        if self.checkpoint_damaged:
            raise Unavailable("checkpoint: it can't be read")
        return self.held

    async def holdings(self) -> tuple[Holding, ...]:
        self.both_read += 1
        return self.held + self.only_listed

    async def refresh(self) -> bool:
        self.ledger_asked.set()
        await self.ledger_answers.wait()
        return True

    def snapshot(self) -> PodsSeen:
        return PodsSeen(ended=self.ended)

    def name_of(self, pod_uid: str) -> PodRef | None:
        if pod_uid in self.unnamed:
            return None
        return PodRef(uid=PodUid(pod_uid), namespace="default", name=pod_uid)

    async def warn(self, pod: PodRef, message: str) -> None:
        self.warned.append((pod.name, message))

    def write_limits(self, record: Record) -> None:
        self.limits[record.nonce] = record

    def write(self, nonce: str, spec: object) -> None:
        self.described[nonce] = spec


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "_KUBELET_STATE_POLL_S", 0.001)


# Its own


async def test_a_start_that_the_checkpoint_shows_needs_no_other_book() -> None:
    node = Node(A_HOLDS_ITS_OWN)

    await node.starting.check(IDS_A)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert node.both_read == 0
    assert not node.ledger_asked.is_set()


@pytest.mark.parametrize("damaged", [False, True])
async def test_an_owner_that_the_checkpoint_does_not_show_is_looked_for_in_both(
    *, damaged: bool
) -> None:
    node = Node()
    node.only_listed = (a_holding("a", ids=set(IDS_A)),)
    node.checkpoint_damaged = damaged

    await node.starting.check(IDS_A)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert node.both_read == 1


async def test_an_owner_known_by_its_record_starts_while_no_grant_is_known() -> None:
    node = Node(A_HOLDS_ITS_OWN)
    node.state.book = a_book(POD_B)

    await node.starting.check(IDS_A)

    assert node.limits == {"nonce-a": MEANT_FOR_A}


async def test_a_dead_pods_entry_with_the_same_ids_keeps_nobody_from_starting() -> None:
    dead = a_grant(a_container(a_share(CARD_B)), pod="dead", token=3)
    of_dead = a_record(dead, ids=set(IDS_A), nonce="nonce-dead")
    node = Node(A_HOLDS_ITS_OWN, a_holding("dead", ids=set(IDS_A), record=of_dead))
    node.ended = frozenset({PodUid("dead")})

    await node.starting.check(IDS_A)

    assert node.limits == {"nonce-a": MEANT_FOR_A}


# Another's


@pytest.mark.parametrize("with_checkpoint", [True, False])
async def test_an_answer_of_another_pod_starts_nothing_and_the_scheduler_is_asked_to_end_the_pod(
    *, with_checkpoint: bool
) -> None:
    node = Node(A_HOLDS_BS if with_checkpoint else a_holding("a", ids=set(IDS_B)))

    with pytest.raises(Conflict, match="granted to another container"):
        await node.starting.check(IDS_B)

    assert node.limits == {}
    assert node.state.saved.records["nonce-b"] == MEANT_FOR_B
    [report] = node.report_bodies()
    assert report["kind"] == "start-refused"
    assert (report["pod_uid"], report["pod_name"], report["container"]) == ("a", "a", "main")
    assert report["allocation_id"] == POD_A.allocation_id
    [(warned, message)] = node.warned
    assert warned == "a"
    assert "the scheduler evicts the pod" in message


async def test_the_same_refusal_is_reported_once() -> None:
    node = Node(A_HOLDS_BS)

    for _ in range(2):
        with pytest.raises(Conflict):
            await node.starting.check(IDS_B)

    assert len(node.report_bodies()) == 1


async def test_an_answer_of_the_same_card_and_size_is_another_pods_too() -> None:
    """No answer is rewritten for it: each container runs with its own grant."""
    node = Node(A_HOLDS_BS)
    node.state.book = a_book(a_grant(a_container(a_share(CARD_B, 8192)), pod="a", token=1), POD_B)

    with pytest.raises(Conflict, match="granted to another container"):
        await node.starting.check(IDS_B)


async def test_a_pod_that_bypassed_the_scheduler_is_shown_the_way_out() -> None:
    node = Node(a_holding("bypassing", ids=set(IDS_B), record=MEANT_FOR_B))

    with pytest.raises(Conflict, match=r"set spec\.schedulerName"):
        await node.starting.check(IDS_B)

    [report] = node.report_bodies()
    assert (report["allocation_id"], report["token"]) == ("", 0)
    assert [pod for pod, _ in node.warned] == ["bypassing"]


async def test_a_pod_that_is_not_known_yet_waits_until_it_can_be_named() -> None:
    node = Node(a_holding("bypassing", ids=set(IDS_B), record=MEANT_FOR_B))
    node.unnamed = frozenset({"bypassing"})

    with pytest.raises(Unavailable, match="until the agent sees its pod"):
        await node.starting.check(IDS_B)

    assert node.report_bodies() == []


# Lost


async def test_an_answer_that_only_the_kubelet_has_is_its_pods_under_its_grant() -> None:
    node = Node(A_HOLDS_ITS_OWN)
    await node.forget("nonce-a")

    await node.starting.check(IDS_A)

    assert node.limits["nonce-a"].shares == (a_share(CARD_A, 4096),)
    assert node.state.saved.records["nonce-a"] == MEANT_FOR_A


async def test_an_answer_that_only_the_kubelet_has_on_other_cards_than_granted_starts_nothing() -> (
    None
):
    node = Node(A_HOLDS_BS)
    await node.forget("nonce-b")

    with pytest.raises(Conflict, match="on other cards now"):
        await node.starting.check(IDS_B)

    assert node.limits == {}


async def test_an_answer_that_only_the_kubelet_has_and_no_grant_start_nothing() -> None:
    node = Node(A_HOLDS_ITS_OWN)
    node.state.book = a_book(POD_B)
    await node.forget("nonce-a")

    with pytest.raises(Conflict, match="without a grant"):
        await node.starting.check(IDS_A)

    # The ledger may have been restored from a backup: the pod is not reported.
    assert node.report_bodies() == []


async def test_a_grant_that_was_entered_again_takes_the_answer_over() -> None:
    node = Node(A_HOLDS_ITS_OWN)
    again = replace(
        POD_A, allocation_id=AllocationId("again"), token=9, state=AllocationState.ALLOCATED
    )
    node.state.book = a_book(again, POD_B)

    await node.starting.check(IDS_A)

    assert node.state.saved.records["nonce-a"].allocation_id == "again"
    assert node.limits["nonce-a"].cards == (CARD_A,)


async def test_an_answer_of_which_nobody_knows_anything_starts_nothing() -> None:
    node = Node(a_holding("a", ids={"unknown"}))

    with pytest.raises(Conflict, match="has no record of this container"):
        await node.starting.check(frozenset({"unknown"}))


async def test_another_plugins_answer_waits_for_its_adoption() -> None:
    foreign = a_foreign_holding("pod-1")
    node = Node(foreign)

    with pytest.raises(Conflict, match="hamictl adopt"):
        await node.starting.check(foreign.device_ids)
    node.state.book = node.state.book.with_grant(replace(a_grant(pod="pod-1"), answered=True))
    with pytest.raises(Unavailable, match="until its adoption is recorded"):
        await node.starting.check(foreign.device_ids)

    assert all(report["kind"] != "start-refused" for report in node.report_bodies())


@pytest.mark.parametrize(("memory_mib", "starts"), [(81920, True), (8192, False)])
async def test_an_answer_without_the_library_starts_nothing_that_has_a_part_of_a_card(
    memory_mib: int, *, starts: bool
) -> None:
    plain = replace(MEANT_FOR_A, plain=True)
    node = Node(a_holding("a", ids=set(IDS_A), record=plain))
    await node.state.change(lambda saved: saved.with_records([plain]))
    node.state.cards = {CARD_A: a_card(CARD_A)}
    granted = a_grant(a_container(a_share(CARD_A, memory_mib, 0)), pod="a", token=9)
    node.state.book = a_book(replace(granted, allocation_id=AllocationId("again")))

    if starts:
        node.container_env = _wants_no_library  # type: ignore[method-assign]
        await node.starting.check(IDS_A)
        assert node.limits["nonce-a"].plain
    else:
        with pytest.raises(Conflict, match="without the library"):
            await node.starting.check(IDS_A)
        assert node.limits == {}


async def _wants_no_library(grant: NodeGrant, container: str) -> dict[str, str]:
    del grant, container
    return {"CUDA_DISABLE_CONTROL": "true"}


# Waiting


@pytest.mark.parametrize("binds_late", [False, True])
async def test_a_kubelet_that_shows_one_container_late_stops_no_other_start(
    monkeypatch: pytest.MonkeyPatch, *, binds_late: bool
) -> None:
    """Ten containers start beside it, and all are done before its checkpoint comes."""
    monkeypatch.setattr(prestart, "KUBELET_STATE_TIMEOUT_S", 2 * PATIENCE_S)
    node = Node(binds_late=binds_late)
    pods = [
        a_grant(a_container(a_share(CARD_A, 1000 + number)), pod=f"pod-{number}", token=number + 1)
        for number in range(11)
    ]
    node.state.book = a_book(*pods)
    holdings = []
    for number, pod in enumerate(pods):
        record = a_record(pod, ids={f"{CARD_A}-{number}"}, nonce=f"nonce-{number}")
        holding = a_holding(pod.pod_uid, ids=set(record.device_ids), record=record)
        if binds_late:
            name = KeptAnswer(nonce=record.nonce, cards=(), cache_dir="")
            holding = replace(holding, answer=name)
        else:
            await node.state.change(lambda saved, made=record: saved.with_records([made]))  # type: ignore[misc]
        holdings.append(holding)
    late, *others = holdings
    node.held = tuple(others)

    waiting = asyncio.create_task(node.starting.check(late.device_ids))
    while not node.both_read:
        await asyncio.sleep(0)
    starts = (node.starting.check(each.device_ids) for each in others)
    await asyncio.wait_for(asyncio.gather(*starts), PATIENCE_S)

    assert sorted(node.limits) == sorted(f"nonce-{number}" for number in range(1, 11))
    assert not waiting.done()
    node.held = tuple(holdings)
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert "nonce-0" in node.limits


async def test_a_start_that_waits_for_the_ledger_stops_no_other_start() -> None:
    node = Node(A_HOLDS_ITS_OWN)
    node.only_listed = (a_holding("unknown", ids=set(IDS_B), record=MEANT_FOR_B),)
    node.ledger_answers = asyncio.Event()
    waiting = asyncio.create_task(node.starting.check(IDS_B))
    await asyncio.wait_for(node.ledger_asked.wait(), PATIENCE_S)

    await asyncio.wait_for(node.starting.check(IDS_A), PATIENCE_S)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_where_containers_bind_late_only_the_checkpoint_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prestart, "KUBELET_STATE_TIMEOUT_S", 0.0)
    node = Node(binds_late=True)
    node.only_listed = (a_holding("a", ids=set(IDS_A)),)

    with pytest.raises(Unavailable, match="the only place with the names"):
        await node.starting.check(IDS_A)


# --- which containers run without libvgpu: those of pods that have whole cards only


CARDS = {card.uuid: card for card in (a_card(CARD_A), a_card(CARD_B, memory_mib=40960))}
PLAIN = replace(PRELOAD, whole_cards_plain=True)
NEVER = replace(PLAIN, may_be_plain=False)
WHOLE = a_share(CARD_A, 81920, 0)
OFF = {"CUDA_DISABLE_CONTROL": "true"}


@pytest.mark.parametrize(
    ("env", "policy", "plain"),
    [
        ({}, PRELOAD, False),
        (OFF, PRELOAD, True),
        ({"CUDA_DISABLE_CONTROL": "false"}, PRELOAD, False),
        ({}, PLAIN, True),
        (OFF, PLAIN, True),
        ({"CUDA_DISABLE_CONTROL": "false"}, PLAIN, False),
        ({"CUDA_DISABLE_CONTROL": "nonsense"}, PLAIN, False),
        ({}, NEVER, False),
        (OFF, NEVER, False),
    ],
)
def test_the_container_decides_before_the_node(
    env: dict[str, str], policy: AnswerPolicy, *, plain: bool
) -> None:
    assert runs_plain([WHOLE], CARDS, env, policy) is plain


@pytest.mark.parametrize(
    ("shares", "plain"),
    [
        pytest.param([WHOLE], True, id="no-limit-of-cores"),
        pytest.param([replace(WHOLE, core_percent=100)], True, id="all-cores"),
        pytest.param([WHOLE, a_share(CARD_B, 40960, 100)], True, id="two-cards"),
        pytest.param([replace(WHOLE, core_percent=50)], False, id="a-limit-of-cores"),
        pytest.param([replace(WHOLE, memory_mib=81919)], False, id="a-part-of-the-memory"),
        pytest.param([WHOLE, a_share(CARD_B, 4096, 0)], False, id="another-containers-slice"),
        pytest.param([a_share("GPU-unknown", 81920, 0)], False, id="a-card-that-is-not-known"),
        pytest.param([replace(WHOLE, detail={"profile": "7g"})], False, id="an-instance"),
        pytest.param([], False, id="no-card"),
    ],
)
def test_only_whole_cards_are_used_without_the_library(
    shares: list[DeviceShare], *, plain: bool
) -> None:
    assert runs_plain(shares, CARDS, OFF, PRELOAD) is plain


def test_what_is_answered_without_the_library_is_the_cards_and_the_limits_folder() -> None:
    record = replace(a_record(a_grant(a_container(WHOLE)), ids={"x"}), plain=True)

    spec = container_response(record, limits_dir="/limits", container_env={}, policy=PRELOAD)

    assert [mount.container_path for mount in spec.mounts] == ["/etc/hami"]
    assert dict(spec.envs) == {"NVIDIA_VISIBLE_DEVICES": CARD_A}


def test_a_restarted_agent_knows_who_runs_without_the_library() -> None:
    record = replace(a_record(a_grant(), ids={"x"}), plain=True)
    other = replace(record, nonce="other", plain=False)

    again = decode(encode(AgentState().with_records([record, other])))

    assert [again.records[nonce].plain for nonce in (record.nonce, "other")] == [True, False]


@pytest.mark.parametrize("plain", [True, False])
def test_the_outside_check_holds_its_memory_to_the_grant_and_expects_no_library(
    *, plain: bool
) -> None:
    record = replace(a_record(a_grant(a_container(WHOLE)), ids={"x"}), plain=plain)

    limits = limits_of([record], ended=frozenset(), controlled=True)

    limit = limits[ContainerKey("pod-1", "main")][CARD_A]
    assert (limit.granted_mib, limit.hardware, limit.controlled) == (81920, False, not plain)
