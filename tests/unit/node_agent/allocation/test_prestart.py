"""A container on other cards than granted starts when the ledger agrees, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.allocation import container_owners, prestart
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.grants.candidates import PodsSeen, candidates
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ownership import Reassigned
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.errors import Conflict, Unavailable

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_card,
    a_container,
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
A_HOLDS_BS = a_holding("a", ids=set(IDS_B), record=MEANT_FOR_B)
B_HOLDS_AS = a_holding("b", ids=set(IDS_A), record=MEANT_FOR_A)


class Node:
    """The kubelet's state, the ledger's answer and the limits files of one node."""

    def __init__(self, *held: Holding) -> None:
        self.held = held
        self.only_listed: tuple[Holding, ...] = ()
        self.checkpoint_damaged = False
        self.both_read = 0
        self.asked: list[tuple[str, list[str]]] = []
        self.in_exchange: list[tuple[str, tuple[str, ...]]] = []
        self.full = False
        self.away = False
        self.ledger_asked = asyncio.Event()
        self.ledger_answers = asyncio.Event()
        self.ledger_answers.set()
        self.limits: dict[str, Record] = {}
        self.state = NodeState(self, AgentState().with_records((MEANT_FOR_A, MEANT_FOR_B)))
        self.state.book = a_book(POD_A, POD_B)
        node = node_ports(self.state, self)
        self.starting = PreStart(node, moves=self, adopted=AsyncMock(), unmanaged=None)

    def save(self, state: AgentState) -> None:
        """Always succeeds."""

    async def checkpointed(self) -> tuple[Holding, ...]:
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

    def seen(self) -> PodsSeen:
        return PodsSeen()

    def name_of(self, pod_uid: str) -> None:
        del pod_uid

    def write_limits(self, record: Record) -> None:
        self.limits[record.nonce] = record

    def keep_cache_dir(self, name: str, nonce: str) -> None:
        """It is there."""

    async def ask(
        self, owner: Reassigned, partners: Iterable[Reassigned], exchange: Reassigned | None
    ) -> str:
        others = [partner.after.pod_uid for partner in partners]
        self.asked.append((owner.after.pod_uid, [str(uid) for uid in others]))
        if exchange is not None:
            self.in_exchange.append((str(exchange.after.pod_uid), exchange.after.cards))
        if self.away:
            raise Unavailable("NATS is not connected")
        return "card full" if self.full and not others else ""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_owners, "_KUBELET_STATE_POLL_S", 0.001)


async def test_both_of_a_swap_are_asked_for_at_once_and_before_anything_is_written() -> None:
    node = Node(A_HOLDS_BS, B_HOLDS_AS)

    await node.starting.check(IDS_B)

    assert node.asked == [("a", ["b"])]
    assert node.limits["nonce-b"].shares == (a_share(CARD_B, 4096),)
    assert node.state.saved.records["nonce-b"].belongs_to("a", "main")


async def test_a_ledger_that_cannot_be_asked_lets_nothing_start() -> None:
    node = Node(A_HOLDS_BS, B_HOLDS_AS)
    node.away = True

    with pytest.raises(Unavailable, match="the ledger can't be asked"):
        await node.starting.check(IDS_B)

    assert node.limits == {}
    assert node.state.saved.records["nonce-b"] == MEANT_FOR_B


async def test_a_container_waits_for_the_partner_that_the_kubelet_is_admitting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prestart, "PARTNER_WAIT_S", 60.0)
    node = Node(A_HOLDS_BS)
    node.full = True

    start = asyncio.create_task(node.starting.check(IDS_B))
    while not node.asked:
        await asyncio.sleep(0)
    node.held = (A_HOLDS_BS, B_HOLDS_AS)
    await asyncio.wait_for(start, PATIENCE_S)

    assert node.asked == [("a", []), ("a", ["b"])]
    assert "nonce-b" in node.limits


async def test_a_partner_that_does_not_come_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prestart, "PARTNER_WAIT_S", 0.05)
    node = Node(A_HOLDS_BS)
    node.full = True

    with pytest.raises(Conflict, match="other than granted: card full"):
        await node.starting.check(IDS_B)

    assert node.asked == [("a", []), ("a", [])]
    assert node.limits == {}
    [report] = node.state.saved.reports
    assert "card full" in report.body


async def test_others_have_their_turn_while_one_waits_for_its_partner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prestart, "PARTNER_WAIT_S", 60.0)
    node = Node(A_HOLDS_BS)
    node.full = True
    other = a_grant(a_container(a_share(CARD_A, 1)), pod="other", token=3)
    record = a_record(other, ids={f"{CARD_A}-7"}, nonce="nonce-other")
    await node.state.change(lambda saved: saved.with_records([record]))
    node.state.book = node.state.book.announced(other)

    waiting = asyncio.create_task(node.starting.check(IDS_B))
    while not node.asked:
        await asyncio.sleep(0)
    node.held = (A_HOLDS_BS, a_holding("other", ids={f"{CARD_A}-7"}, record=record))
    await asyncio.wait_for(node.starting.check(record.device_ids), PATIENCE_S)

    assert "nonce-other" in node.limits
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_swap_on_the_same_card_is_nobodys_question() -> None:
    node = Node(A_HOLDS_BS)
    same = a_grant(a_container(a_share(CARD_B, 4096)), pod="a", token=1)
    node.state.book = a_book(same, POD_B)

    await node.starting.check(IDS_B)

    assert node.asked == []
    assert node.limits["nonce-b"].shares == (a_share(CARD_B, 4096),)


async def test_who_loses_its_answer_to_another_is_kept_the_one_that_was_meant_for_that() -> None:
    """Else the next pod's Allocate, before the other one starts, is taken for its own."""
    node = Node(A_HOLDS_BS)
    same = a_grant(a_container(a_share(CARD_B, 4096)), pod="a", token=1)
    node.state.book = a_book(same, POD_B)

    await node.starting.check(IDS_B)

    records = node.state.saved.records
    assert records["nonce-b"].belongs_to("a", "main")
    assert records["nonce-a"].counts_for("b", "main")
    assert not records["nonce-a"].belongs_to("b", "main")
    assert candidates(node.state.book, records.values(), 1, PodsSeen()) == []


async def test_the_other_of_a_template_is_offered_the_owners_card_in_exchange() -> None:
    node = Node(A_HOLDS_BS, B_HOLDS_AS)
    same_size = a_grant(a_container(a_share(CARD_B, 4096)), pod="b", token=2)
    node.state.book = a_book(POD_A, same_size)

    await node.starting.check(IDS_B)

    assert node.in_exchange == [("b", (CARD_A,))]


async def test_a_start_that_the_checkpoint_shows_needs_no_other_book() -> None:
    node = Node(a_holding("a", ids=set(IDS_A), record=MEANT_FOR_A))

    await node.starting.check(IDS_A)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert node.both_read == 0


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


async def test_containers_that_the_kubelet_shows_late_stop_no_other_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(container_owners, "KUBELET_STATE_WAIT_S", 2 * PATIENCE_S)
    node = Node(a_holding("a", ids=set(IDS_A), record=MEANT_FOR_A))
    late = [
        asyncio.create_task(node.starting.check(frozenset({f"{CARD_A}-late-{number}"})))
        for number in range(11)
    ]
    while node.both_read < len(late):
        await asyncio.sleep(0)

    await asyncio.wait_for(node.starting.check(IDS_A), PATIENCE_S)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert not any(each.done() for each in late)
    for each in late:
        each.cancel()
    await asyncio.wait(late)


async def test_a_start_that_waits_for_the_ledger_stops_no_other_start() -> None:
    node = Node(a_holding("a", ids=set(IDS_A), record=MEANT_FOR_A))
    node.only_listed = (a_holding("unknown", ids=set(IDS_B), record=MEANT_FOR_B),)
    node.ledger_answers = asyncio.Event()
    waiting = asyncio.create_task(node.starting.check(IDS_B))
    await asyncio.wait_for(node.ledger_asked.wait(), PATIENCE_S)

    await asyncio.wait_for(node.starting.check(IDS_A), PATIENCE_S)

    assert node.limits == {"nonce-a": MEANT_FOR_A}
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize(("memory_mib", "starts"), [(81920, True), (8192, False)])
async def test_an_answer_without_the_library_starts_nobody_who_has_a_part_of_a_card(
    memory_mib: int, *, starts: bool
) -> None:
    plain = replace(MEANT_FOR_B, plain=True)
    node = Node(a_holding("a", ids=set(IDS_B), record=plain))
    await node.state.change(lambda saved: saved.with_records([plain]))
    node.state.cards = {CARD_B: a_card(CARD_B)}
    node.state.book = a_book(a_grant(a_container(a_share(CARD_B, memory_mib, 0)), pod="a"))

    if starts:
        await node.starting.check(IDS_B)
        assert node.limits["nonce-b"].belongs_to("a", "main")
    else:
        with pytest.raises(Conflict, match="without the library that holds limits"):
            await node.starting.check(IDS_B)
        assert node.limits == {}
