"""Pods of one template on full cards: in any order, each starts where the ledger counts it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.allocation import prestart
from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.grant_lookup import GrantFinder
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.allocation.seats import exchange_for, seated
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.candidates import Candidate, PodsSeen
from hami_node_agent.grants.kubelet_answers import Holding, KeptAnswer
from hami_node_agent.grants.ownership import Reassigned, reassigned
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict, NotFound
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_container,
    a_grant,
    a_record,
    a_share,
    node_ports,
)

ANSWERS = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so"),
)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "PARTNER_WAIT_S", 0.0)


def pod(name: str, card: str, *, token: int = 1, **more: Any) -> NodeGrant:
    return a_grant(a_container(a_share(card)), pod=name, token=token, **more)


class FullNode:
    """A node whose cards are full of pods of one template, its kubelet and its ledger."""

    def __init__(self, cards: int, on_each: int) -> None:
        names = [f"GPU-{card}" for card in range(cards) for _ in range(on_each)]
        self.on_each = on_each
        self.rows = {f"pod-{number}": card for number, card in enumerate(names)}
        self.held: list[Holding] = []
        self.started: dict[str, str] = {}
        self.connected = True
        self.state = NodeState(self, AgentState())
        self.state.book = self._book()
        node = node_ports(self.state, self)
        finder = GrantFinder(node, node_name="n", wait_s=0.0)
        self.answers = Allocate(node, finder=finder, answers=ANSWERS)
        self.starts = PreStart(node, moves=self, adopted=AsyncMock(), unmanaged=None)

    def _book(self) -> GrantBook:
        rows = enumerate(self.rows.items(), start=1)
        return a_book(*(pod(name, card, token=number) for number, (name, card) in rows))

    async def admit(self, name: str, ids: str) -> None:
        """The kubelet's Allocate for the pod, and its checkpoint."""
        await self.answers.allocate([frozenset({ids})])
        record = next(r for r in self.state.saved.records.values() if ids in r.device_ids)
        answer = KeptAnswer(nonce=record.nonce, cards=record.cards, cache_dir=record.cache_dir)
        self.held.append(
            Holding(pod_uid=name, container="main", device_ids=record.device_ids, answer=answer)
        )

    async def start(self, name: str) -> None:
        """The kubelet's PreStartContainer."""
        holding = next(each for each in self.held if each.pod_uid == name)
        await self.starts.check(holding.device_ids)
        assert holding.answer is not None
        [self.started[name]] = holding.answer.cards

    async def ask(
        self, owner: Reassigned, partners: Iterable[Reassigned], exchange: Reassigned | None
    ) -> str:
        """The ledger, where no card has room for one more."""
        del partners
        if exchange is None:
            return "card full"
        for change in (owner, exchange):
            assert change.after.pod_uid not in self.started, "it runs, and is moved"
            [self.rows[change.after.pod_uid]] = change.after.cards
        return ""

    async def refresh(self) -> bool:
        self.state.book = self.state.book.reset_to(
            self._book().grants.values(), complete=True, asked_at=float("inf")
        )
        return True

    def save(self, state: AgentState) -> None:
        """Always succeeds."""

    async def checkpointed(self) -> tuple[Holding, ...]:
        return tuple(self.held)

    holdings = checkpointed

    def seen(self) -> PodsSeen:
        return PodsSeen()

    def name_of(self, pod_uid: str) -> None:
        del pod_uid

    async def warn(self, *_: object) -> None:
        """Nobody reads it."""

    async def container_env(self, *_: object) -> dict[str, str]:
        return {}

    def waiting_for(self, _count: int) -> tuple[()]:
        return ()

    def limits_dir(self, nonce: str) -> Path:
        return Path("/limits") / nonce

    def write_limits(self, record: Record) -> None:
        """On disk."""

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """On disk."""

    keep_cache_dir = make_cache_dir


async def live(
    cards: int, on_each: int, order: Sequence[int], chosen: Sequence[int], unmanaged: int
) -> FullNode:
    """Pods and unmanaged, who pass the scheduler by, are admitted in `order`; between that those
    that may start are started, each as `chosen` has it."""
    node = FullNode(cards, on_each)
    pods = list(node.rows)
    everybody = [*pods, *(f"unmanaged-{number}" for number in range(unmanaged))]
    waiting: list[str] = []
    for step, number in enumerate(order):
        name = everybody[number]
        try:
            await node.admit(name, f"id-{step}")
        except NotFound:
            assert name not in pods, f"{name} is refused its answer"
            continue
        waiting.append(name)
        if chosen[step] < len(waiting) and await started(node, waiting[chosen[step]]):
            del waiting[chosen[step]]
    for name in waiting:
        assert await started(node, name), f"{name} is not started"
    return node


async def started(node: FullNode, name: str) -> bool:
    """False: the kubelet tries again later; who passes the scheduler by never starts."""
    try:
        await node.start(name)
    except Conflict:
        return name not in node.rows
    assert name in node.rows, "it has no grant, and runs"
    return True


@st.composite
def admissions(draw: st.DrawFn) -> tuple[int, int, list[int], list[int], int]:
    cards, on_each = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    unmanaged = draw(st.integers(0, 2))
    count = cards * on_each + unmanaged
    order = draw(st.permutations(range(count)))
    chosen = draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    return cards, on_each, order, chosen, unmanaged


@settings(max_examples=300, deadline=None)
@given(admissions())
def test_each_pod_of_a_template_starts_where_the_ledger_counts_it(
    case: tuple[int, int, list[int], list[int], int],
) -> None:
    node = asyncio.run(live(*case))

    assert node.started == node.rows
    cards = list(node.rows.values())
    assert all(cards.count(card) == node.on_each for card in cards)


def held_by(owner: NodeGrant, record: Record) -> Reassigned:
    """The owner is about to start with an answer that was meant for another."""
    return Reassigned(after=reassigned(record, owner, owner.containers[0]), grant=owner)


A, B = pod("a", CARD_A, token=1), pod("b", CARD_B, token=2)
OF_A = a_record(A, ids={"1"}, nonce="of-a")
OF_B = a_record(B, ids={"2"}, nonce="of-b")


def test_who_was_granted_the_card_gets_the_owners() -> None:
    c = pod("c", "GPU-c", token=3)
    of_c = a_record(c, ids={"3"}, nonce="of-c")

    found = exchange_for(held_by(A, OF_B), [held_by(c, OF_A), held_by(B, of_c)])

    assert found is not None
    assert found.grant == B
    assert found.after.cards == (CARD_A,)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_grant(a_container(a_share(CARD_B, 1)), pod="b", token=2), id="another size"),
        pytest.param(pod("b", "GPU-c", token=2), id="another card"),
    ],
)
def test_nobody_else_is_moved(other: NodeGrant) -> None:
    assert exchange_for(held_by(A, OF_B), [held_by(other, OF_A)]) is None


def test_grants_of_several_cards_are_not_exchanged() -> None:
    both = [
        a_grant(a_container(a_share(one), a_share(two)), pod=name, token=token)
        for token, (name, one, two) in enumerate(
            (("a", CARD_A, "GPU-a2"), ("b", CARD_B, "GPU-b2")), start=1
        )
    ]
    of_a, of_b = (a_record(each, ids={each.pod_uid}, nonce=each.pod_uid) for each in both)

    assert exchange_for(held_by(both[0], of_b), [held_by(both[1], of_a)]) is None


def test_an_answer_names_its_own_card_while_nobody_else_has_that() -> None:
    waiting = Candidate(grant=B, container=B.containers[0])

    assert seated(waiting, a_book(A, B), [OF_A]) == waiting


def test_a_seat_that_another_took_is_made_good_by_the_one_that_is_left() -> None:
    c = pod("c", "GPU-c", token=3)
    # B's answer went to A; A's own to one that never starts.
    a_has_bs = OF_B.lost_to("a", "main", namespace="default", pod_name="name-of-a")
    waiting = Candidate(grant=B, container=B.containers[0])

    found = seated(waiting, a_book(A, B, c), [a_has_bs, a_record(c, ids={"3"}, nonce="of-c")])

    assert [share.uuid for share in found.container.shares] == [GpuUuid(CARD_A)]
