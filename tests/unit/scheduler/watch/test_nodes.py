"""A node object's wishes are written once, and again when its cards come later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hami_scheduler.watch.nodes import NodeSync, group_of
from hamicommon.domain.ids import NodeName

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
    """Store that records writes."""

    def __init__(self) -> None:
        self.groups: list[dict[NodeName, str | None]] = []
        self.closed: list[tuple[NodeName, bool]] = []
        self.cordons: list[tuple[str, frozenset[str]]] = []

    async def set_node(self, node: NodeName, *, group: str | None, unschedulable: bool) -> None:
        self.groups.append({node: group})
        self.closed.append((node, unschedulable))

    async def set_cordoned(self, node: str, uuids: frozenset[str]) -> bool:
        self.cordons.append((node, uuids))
        return False

    async def mark_gone(self, node: str) -> None:
        """Nothing to do."""


class View:
    """Knows whether each node has a cordoned card."""

    loaded = True

    def __init__(self) -> None:
        self.cordoned: set[str] = set()
        self.cluster = SimpleNamespace(cards=self.cards)

    def cards(self, node: str) -> list[Any]:
        usage = SimpleNamespace(cordoned=node in self.cordoned, device=None)
        return [SimpleNamespace(usage=usage)] if node in self.cordoned else []

    async def refresh_nodes(self, node: str) -> None:
        """Nothing to read."""


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def sync(store: Store, view: View) -> NodeSync:
    async def note(_node: str, _unmatched: object) -> tuple[str, ...]:
        return ()

    return NodeSync(
        store=cast(Any, store),
        view=cast(Any, view),
        group_labels=LABELS,
        unmatched=cast(Any, SimpleNamespace(note=note, forget=lambda _node: None)),
        events=cast(Any, None),
        on_gone=lambda _node: None,
        on_freed=lambda: None,
    )


async def test_what_did_not_change_is_not_written_again(sync: NodeSync, store: Store) -> None:
    sync.on_upsert(a_node("n1", **{RACK: "r1"}))
    sync.on_upsert(a_node("n2"))
    await sync.queue.run_due()
    sync.on_upsert(a_node("n1", **{RACK: "r1"}, more="x"))
    await sync.queue.run_due()
    sync.on_upsert(a_node("n1", **{RACK: "r2"}))
    await sync.queue.run_due()

    assert store.groups == [{"n1": "r1"}, {"n2": None}, {"n1": "r2"}]


async def test_a_node_whose_agent_reports_later_has_its_group_then(
    sync: NodeSync, store: Store
) -> None:
    sync.on_upsert(a_node("n1", **{RACK: "r1"}))
    sync.on_upsert(a_node("n2"))
    await sync.queue.run_due()
    sync.on_cards_written(["n1", "n2", "of no object"])
    await sync.queue.run_due()

    assert store.groups == [{"n1": "r1"}, {"n2": None}, {"n1": "r1"}]


async def test_a_cordon_is_written_for_a_node_that_wishes_or_has_one(
    sync: NodeSync, store: Store, view: View
) -> None:
    view.cordoned.add("n2")
    for name in ("n1", "n2"):
        sync.on_upsert(a_node(name))
    await sync.queue.run_due()

    assert store.cordons == [("n2", frozenset())]


async def test_a_cordoned_node_is_written_also_when_its_cards_come_later(
    sync: NodeSync, store: Store
) -> None:
    sync.on_upsert(a_node() | {"spec": {"unschedulable": True}})
    await sync.queue.run_due()
    sync.on_cards_written(["n1"])
    await sync.queue.run_due()
    sync.on_upsert(a_node() | {"spec": {}})
    await sync.queue.run_due()

    assert store.closed == [("n1", True), ("n1", True), ("n1", False)]


async def test_a_node_that_went_is_forgotten_and_one_that_comes_again_is_written(
    sync: NodeSync, store: Store
) -> None:
    sync.on_upsert(a_node("n1", **{RACK: "r1"}))
    assert "n1" in sync
    sync.on_delete(a_node("n1"))
    await sync.queue.run_due()
    assert "n1" not in sync
    assert store.groups == []

    sync.on_upsert(a_node("n1", **{RACK: "r1"}))
    await sync.queue.run_due()
    assert store.groups == [{"n1": "r1"}]
