"""A node's group is the value of the first label that it has, and is in the ledger for good."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hami_scheduler.watch.node_groups import NodeGroups, group_of
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable

LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
RACK, ZONE = LABELS


def a_node(name: str = "n1", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("labels", "group"),
    [
        ({RACK: "r1", ZONE: "z1"}, "r1"),
        ({ZONE: "z1"}, "z1"),
        ({RACK: "", ZONE: "z1"}, "z1"),
        ({"other": "r1"}, None),
        ({}, None),
    ],
)
def test_the_first_label_that_a_node_has_names_its_group(
    labels: dict[str, str], group: str | None
) -> None:
    assert group_of(a_node(**labels), LABELS) == group


def test_without_labels_to_look_at_and_without_any_a_node_has_none() -> None:
    assert group_of(a_node(**{RACK: "r1"}), ()) is None
    assert group_of({"metadata": {"name": "n1"}}, LABELS) is None


class Store:
    """Knows some nodes, and fails as often as it should."""

    def __init__(self, *known: str, failures: int = 0) -> None:
        self.known = {NodeName(name) for name in known}
        self.failures = failures
        self.written: list[dict[NodeName, str | None]] = []

    async def set_groups(self, groups: Mapping[NodeName, str | None]) -> Collection[NodeName]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("Postgres is away")
        self.written.append(dict(groups))
        return self.known & groups.keys()


async def test_all_nodes_are_one_statement_and_what_did_not_change_none() -> None:
    store = Store("n1", "n2")
    groups = NodeGroups(store=store, labels=LABELS)
    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    groups.node_seen(a_node("n2"))
    await groups.once()

    groups.node_seen(a_node("n1", **{RACK: "r1"}, more="x"))
    await groups.once()
    groups.node_seen(a_node("n1", **{RACK: "r2"}))
    await groups.once()

    assert store.written == [{"n1": "r1", "n2": None}, {"n1": "r2"}]


async def test_a_node_whose_agent_has_not_reported_is_tried_again() -> None:
    store = Store()
    groups = NodeGroups(store=store, labels=LABELS)
    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    await groups.once()
    store.known.add(NodeName("n1"))
    await groups.once()
    await groups.once()

    assert store.written == [{"n1": "r1"}, {"n1": "r1"}]


async def test_what_the_ledger_could_not_take_is_tried_again() -> None:
    store = Store("n1", failures=1)
    groups = NodeGroups(store=store, labels=LABELS)
    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    await groups.once()
    assert store.written == []
    await groups.once()

    assert store.written == [{"n1": "r1"}]


async def test_a_node_that_went_is_forgotten_and_one_that_comes_again_is_written() -> None:
    store = Store()
    groups = NodeGroups(store=store, labels=LABELS)
    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    groups.node_gone(a_node("n1"))
    await groups.once()
    assert store.written == []

    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    await groups.once()
    assert store.written == [{"n1": "r1"}]


async def test_the_worker_writes_when_a_node_is_seen() -> None:
    store = Store("n1")
    groups = NodeGroups(store=store, labels=LABELS)
    working = asyncio.create_task(groups.run())
    groups.node_seen(a_node("n1", **{RACK: "r1"}))
    try:
        async with asyncio.timeout(10):
            while not store.written:
                await asyncio.sleep(0)
    finally:
        working.cancel()

    assert store.written == [{"n1": "r1"}]
