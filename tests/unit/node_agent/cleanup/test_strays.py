"""Leftovers of the host without an owner; slices by claims whose records are lost have one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hami_node_agent.cleanup import garbage_collection
from hami_node_agent.cleanup.garbage_collection import Strays
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.state import NodeState
from hamicommon.errors import Unavailable

from tests.unit.node_agent.builders import CARD_A, a_grant, a_record

RECORD = a_record(a_grant(), ids={f"{CARD_A}-0"}, nonce="recorded")


@dataclass
class Node:
    """A node's directories, and the kubelet's pods."""

    described_nonces: frozenset[str] = frozenset({"recorded", "claimed", "nobodys"})
    claimed_nonces: frozenset[str] | None = frozenset({"claimed"})
    """None: the kubelet doesn't answer."""
    kept: list[frozenset[str]] = field(default_factory=list)
    """The nonces that were no strays, of each round."""

    def save(self, state: AgentState) -> None:
        """Do nothing."""

    async def holdings(self) -> tuple[Holding, ...]:
        return ()

    async def claim_nonces(self) -> frozenset[str]:
        if self.claimed_nonces is None:
            raise Unavailable("no such socket")
        return self.claimed_nonces

    def cdi_nonces(self) -> frozenset[str]:
        return self.described_nonces

    def remove_strays(
        self, *, nonces: frozenset[str], cache_dirs: frozenset[str], older_than_s: float
    ) -> None:
        del cache_dirs, older_than_s
        self.kept.append(nonces)


@pytest.fixture(autouse=True)
def _due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "STRAY_INTERVAL_S", -1.0)


async def swept(node: Node) -> frozenset[str]:
    port: Any = node
    state = NodeState(port, AgentState().with_records([RECORD]))
    await Strays(state, kubelet_state=port, files=port).sweep()
    [kept] = node.kept
    return kept


async def test_what_the_kubelet_has_by_a_claim_stays_though_its_record_is_lost() -> None:
    assert await swept(Node()) == {"recorded", "claimed"}


async def test_all_that_is_described_stays_where_the_kubelet_does_not_answer() -> None:
    assert await swept(Node(claimed_nonces=None)) == {"recorded", "claimed", "nobodys"}


async def test_the_kubelet_is_not_asked_where_every_description_has_its_record() -> None:
    node = Node(described_nonces=frozenset({"recorded"}), claimed_nonces=None)
    assert await swept(node) == {"recorded"}
