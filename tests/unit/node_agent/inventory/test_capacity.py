"""Sums of a node's cards in its Node's capacity."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hami_node_agent.bootstrap.agent import open_agent
from hami_node_agent.config.settings import Settings
from hami_node_agent.inventory.capacity import keep_capacity, require_marker, sums_of
from hami_node_agent.inventory.tracker import CardTracker
from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Forbidden, InvalidRequest

from tests.unit.node_agent.builders import a_card
from tests.unit.node_agent.inventory.driver import Driver, facts, tracker_of

CONFIG = NvidiaConfig()
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


@pytest.mark.parametrize(
    ("cards", "config", "sums"),
    [
        pytest.param(
            [a_card("a"), a_card("b")],
            CONFIG,
            {MEMORY: 2 * a_card().memory_mib, CORES: 200},
            id="two cards",
        ),
        pytest.param(
            [a_card("a"), replace(a_card("b"), healthy=False)],
            CONFIG,
            {MEMORY: 2 * a_card().memory_mib, CORES: 200},
            id="one of two is unhealthy",
        ),
        pytest.param([], CONFIG, {MEMORY: 0, CORES: 0}, id="no card"),
        pytest.param(
            [replace(a_card("a"), memory_mib=1500), replace(a_card("b"), memory_mib=1500)],
            NvidiaConfig(memory_factor=1024, resource_memory_name="a.b/gib"),
            {"a.b/gib": 2, CORES: 200},
            id="in units of which a card has no half",
        ),
    ],
)
def test_the_sums_are_what_containers_may_ask_for(
    cards: list[GpuDevice], config: NvidiaConfig, sums: dict[str, int]
) -> None:
    assert sums_of(cards, config) == sums


ON = {"HAMI_SCHEDULER_SCALE": "on"}


@pytest.mark.parametrize(
    ("report", "variables"),
    [
        ("off", ON),
        ("on", {}),
        ("on", {"HAMI_SCHEDULER_SCALE": "plan"}),
        ("on", ON | {"HAMI_WEBHOOK_MARK_SLICES": "on"}),
        ("remove", ON),
    ],
)
def test_sums_are_reported_where_no_autoscaler_counts_slices_by_them(
    report: str, variables: dict[str, str]
) -> None:
    require_marker(report, variables)


@pytest.mark.parametrize("more", [{}, {"HAMI_WEBHOOK_MARK_SLICES": "off"}])
def test_sums_with_an_autoscaler_and_without_the_marker_are_refused(more: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        require_marker("on", ON | more)

    assert str(refused.value) == (
        "HAMI_NODE_AGENT_REPORT_CAPACITY=on with HAMI_SCHEDULER_SCALE=on and "
        "HAMI_WEBHOOK_MARK_SLICES=off: an autoscaler would count slices by the sums of a node, and "
        "make too few nodes: set HAMI_WEBHOOK_MARK_SLICES=on, here and at hami-webhook, or "
        "HAMI_NODE_AGENT_REPORT_CAPACITY=remove"
    )


async def test_an_agent_does_not_start_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (ON | {"HAMI_NODE_AGENT_REPORT_CAPACITY": "on"}).items():
        monkeypatch.setenv(name, value)
    settings = Settings.model_validate({"node_name": "n", "nats": {"url": "nats://nobody"}})

    with pytest.raises(InvalidRequest, match="HAMI_NODE_AGENT_REPORT_CAPACITY=on with"):
        async with open_agent(settings):
            pytest.fail("it started")


class Node:
    """Keeps amounts; the first writes are refused."""

    def __init__(self, amounts: dict[str, int], *, refusals: int = 0) -> None:
        self.amounts = amounts
        self.writes = 0
        self._refusals = refusals

    async def has_amounts(self, amounts: Mapping[str, int | None]) -> bool:
        return all(self.amounts.get(name) == amount for name, amount in amounts.items())

    async def set_amounts(self, amounts: Mapping[str, int | None]) -> None:
        self.writes += 1
        if self.writes <= self._refusals:
            raise Forbidden("may not patch nodes/status")
        written = {**self.amounts, **amounts}
        self.amounts = {name: amount for name, amount in written.items() if amount is not None}


async def looks(
    cards: CardTracker, node: Node, monkeypatch: pytest.MonkeyPatch, *, count: int, removes: bool
) -> None:
    """Let it look `count` times."""
    rounds = iter(range(count - 1))

    async def wait(seen: int, _: float | None = None) -> int:
        if next(rounds, None) is None:
            raise asyncio.CancelledError
        return seen

    monkeypatch.setattr(cards.changed, "wait", wait)
    with pytest.raises(asyncio.CancelledError):
        await keep_capacity(cards, node, CONFIG, removes=removes)


async def two_cards() -> CardTracker:
    driver = Driver()
    driver.listed = tuple(facts(GpuUuid(f"GPU-{index}"), index) for index in range(2))
    return await tracker_of(driver, xid_quiet_s=60)


@pytest.mark.parametrize(
    ("node", "writes"),
    [
        pytest.param(Node({"cpu": 4}), 1, id="not there"),
        # The kubelet does so when it registers its Node again.
        pytest.param(Node({"cpu": 4, MEMORY: 0, CORES: 0}), 1, id="set to 0"),
        pytest.param(Node({"cpu": 4}, refusals=2), 3, id="refused twice"),
    ],
)
async def test_sums_are_written_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, node: Node, writes: int
) -> None:
    cards = await two_cards()
    others = dict(node.amounts)

    await looks(cards, node, monkeypatch, count=5, removes=False)

    assert node.amounts == others | sums_of(cards.devices(), CONFIG)
    assert node.writes == writes


async def test_sums_are_removed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    cards, node = await two_cards(), Node({"cpu": 4})
    await looks(cards, node, monkeypatch, count=1, removes=False)

    await looks(cards, node, monkeypatch, count=3, removes=True)

    assert node.amounts == {"cpu": 4}
    assert node.writes == 2
