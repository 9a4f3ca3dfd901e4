"""Agents that report, agents that are silent, and the time before anything is known."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest
from hami_scheduler.bus.heartbeats import AgentLiveness, Mark
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable

A, B = NodeName("a"), NodeName("b")
SILENT_S = 60.0


class Cluster:
    """Agents, bus and ledger as the monitor of heartbeats sees them, with a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.bus_since_s: float | None = -1000.0
        self.ledger_away = False
        self.sequences = {A: 1, B: 1}
        self.recovered = 0
        self.liveness = AgentLiveness(
            reader=self,
            bus_connected_for_s=self.bus_connected_for_s,
            on_recovered=self.count,
            silent_s=SILENT_S,
            clock=lambda: self.now_s,
        )

    async def agent_marks(self) -> Mapping[NodeName, Mark]:
        if self.ledger_away:
            raise Unavailable("the ledger is away")
        return {node: ("agent", number) for node, number in self.sequences.items()}

    def bus_connected_for_s(self) -> float:
        return 0.0 if self.bus_since_s is None else self.now_s - self.bus_since_s

    def count(self) -> None:
        self.recovered += 1

    async def run(self, seconds: float, *talking: NodeName) -> None:
        """Looks every 5 s, as the service does; these agents talk all the while."""
        for _ in range(int(seconds / 5)):
            self.now_s += 5
            for node in talking:
                self.sequences[node] += 1
            with contextlib.suppress(Unavailable):
                await self.liveness.once()


@pytest.fixture
async def cluster() -> Cluster:
    """Return a cluster whose two agents have sent heartbeats for two minutes."""
    made = Cluster()
    await made.liveness.once()
    await made.run(120, A, B)
    return made


async def test_an_agent_that_stops_talking_is_silent_and_no_longer_speaks(
    cluster: Cluster,
) -> None:
    await cluster.run(SILENT_S + 5, A)

    assert ((A in cluster.liveness.silent), (B in cluster.liveness.silent)) == (False, True)
    assert (cluster.liveness.speaks(A), cluster.liveness.speaks(B)) == (True, False)


async def test_an_agent_that_is_heard_again_wakes_who_waits(cluster: Cluster) -> None:
    await cluster.run(SILENT_S + 5, A)
    assert cluster.recovered == 0

    await cluster.run(5, A, B)

    assert cluster.recovered == 1
    assert B not in cluster.liveness.silent


async def test_of_an_agent_that_never_repeated_itself_nothing_is_known() -> None:
    cluster = Cluster()
    await cluster.liveness.once()
    cluster.liveness.on_message(A)

    await cluster.run(10 * SILENT_S)

    assert A not in cluster.liveness.silent
    assert not cluster.liveness.speaks(A)


async def test_who_does_not_answer_is_silent_until_it_is_heard(cluster: Cluster) -> None:
    cluster.liveness.on_unanswered(B)
    assert B in cluster.liveness.silent

    cluster.liveness.on_message(B)

    assert B not in cluster.liveness.silent
    assert cluster.recovered == 1


async def test_who_does_not_answer_is_asked_again_after_a_while(cluster: Cluster) -> None:
    cluster.liveness.on_unanswered(B)

    await cluster.run(15, A)

    assert B not in cluster.liveness.silent
    assert cluster.recovered == 1


@pytest.mark.parametrize("lost", ["bus", "ledger"])
@pytest.mark.parametrize(
    ("lives", "silent", "speaks"),
    [(True, False, True), (False, True, False), (None, False, False)],
    ids=["node-ready", "node-not-ready", "node-unknown"],
)
async def test_while_nothing_can_be_heard_the_node_object_decides(
    cluster: Cluster, lost: str, lives: bool | None, silent: bool, speaks: bool
) -> None:
    cluster.liveness.node_seen(A, lives)
    if lost == "bus":
        cluster.bus_since_s = None
    else:
        cluster.ledger_away = True

    await cluster.run(SILENT_S + 5)

    assert ((A in cluster.liveness.silent), cluster.liveness.speaks(A)) == (silent, speaks)


@pytest.mark.parametrize("lost", ["bus", "ledger"])
async def test_after_an_outage_agents_get_their_time_to_be_heard(
    cluster: Cluster, lost: str
) -> None:
    cluster.bus_since_s, cluster.ledger_away = None, lost == "ledger"
    await cluster.run(2 * SILENT_S)
    cluster.bus_since_s, cluster.ledger_away = cluster.now_s, False

    await cluster.run(SILENT_S - 10)
    assert A not in cluster.liveness.silent

    await cluster.run(15)
    assert A in cluster.liveness.silent


async def test_a_node_that_went_is_forgotten(cluster: Cluster) -> None:
    cluster.liveness.on_unanswered(B)
    del cluster.sequences[B]

    await cluster.run(5, A)

    assert B not in cluster.liveness.silent


async def test_a_deleted_node_whose_agent_still_talks_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    del cluster.sequences[B]
    await cluster.run(5, A)
    for _ in range(2):
        cluster.liveness.on_message(B)

    await cluster.run(SILENT_S + 10, A)

    assert cluster.liveness.mute == frozenset()
    assert B not in {*cluster.liveness._reported_at, *cluster.liveness._reported_once}
