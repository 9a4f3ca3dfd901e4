"""Allocate beside a PreStartContainer that changes the records while it is under way."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from unittest.mock import AsyncMock

from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.grant_lookup import GrantFinder
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.candidates import PodsSeen
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.state import NodeState

from tests.unit.node_agent.builders import (
    CARD_A,
    a_book,
    a_container,
    a_grant,
    a_holding,
    a_record,
    a_share,
    node_ports,
)

FIRST = a_grant(a_container(a_share()), pod="first", token=1)
SECOND = a_grant(a_container(a_share()), pod="second", token=2)
FIRST_IDS, SECOND_IDS = frozenset({f"{CARD_A}-0"}), frozenset({f"{CARD_A}-1"})
MEANT_FOR_SECOND = a_record(SECOND, ids=set(FIRST_IDS), nonce="taken by first")


class Node:
    """A node whose first pod was given the answer that was meant for the second."""

    def __init__(self) -> None:
        self.state = NodeState(self, AgentState().with_records([MEANT_FOR_SECOND]))
        self.state.book = a_book(FIRST, SECOND)
        node = node_ports(self.state, self)
        finder = GrantFinder(node, node_name="n", wait_s=0.0)
        answers = AnswerPolicy(
            container_base=PurePosixPath("/usr/local/vgpu"),
            host_base=PurePosixPath("/usr/local/vgpu"),
            library=PurePosixPath("/usr/local/vgpu/libvgpu.so"),
        )
        self.answers = Allocate(node, finder=finder, answers=answers)
        self.starts = PreStart(node, moves=AsyncMock(), adopted=AsyncMock(), unmanaged=None)
        self.connected = True
        self.env_read_for: list[str] = []

    async def container_env(self, grant: NodeGrant, container: str) -> dict[str, str]:
        """The first pod starts while Allocate, taken for its own, reads its variables."""
        del container
        self.env_read_for.append(grant.pod_uid)
        if len(self.env_read_for) == 1:
            await self.starts.check(FIRST_IDS)
        return {}

    async def checkpointed(self) -> tuple[Holding, ...]:
        return (a_holding("first", ids=set(FIRST_IDS), record=MEANT_FOR_SECOND),)

    holdings = checkpointed

    async def refresh(self) -> bool:
        return True

    def save(self, state: AgentState) -> None:
        """Always succeeds."""

    def seen(self) -> PodsSeen:
        return PodsSeen()

    def limits_dir(self, nonce: str) -> Path:
        return Path("/limits") / nonce

    def write_limits(self, record: Record) -> None:
        """Do nothing: no case looks at files."""

    def make_cache_dir(self, name: str, nonce: str) -> None:
        """Do nothing: no case looks at files."""

    keep_cache_dir = make_cache_dir


async def test_a_container_that_was_just_answered_is_not_answered_once_more() -> None:
    node = Node()

    await node.answers.allocate([SECOND_IDS])

    assert node.env_read_for == ["first", "second"]
    owners = {record.pod_uid: record.device_ids for record in node.state.saved.records.values()}
    assert owners == {"first": FIRST_IDS, "second": SECOND_IDS}
