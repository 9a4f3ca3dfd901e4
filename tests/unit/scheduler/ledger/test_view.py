"""The view of the ledger's cards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.ports import LedgerCard, PairScores
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import Unavailable
from hamicommon.ledger.cards.demands import CardDemand
from hamicommon.ledger.model import CardCounters
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass
class Reader:
    """A ledger's cards, and how often they were read."""

    rows: dict[str, LedgerCard] = field(default_factory=dict)
    full_reads: int = 0

    async def tally(self) -> tuple[int, int]:
        return len(self.rows), sum(card.version for card in self.rows.values())

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        self.full_reads += 1
        return {uuid: (card.node, card.version) for uuid, card in self.rows.items()}

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        return [card for card in self.rows.values() if nodes is None or card.node in nodes]

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        return {}

    entered: int = 0

    def next_version(self) -> int:
        """Of a card that enters: higher than any before it, as the ledger gives them."""
        self.entered += 1
        return self.entered * 1_000

    def put(self, name: str, *, node: str = "n", version: int = 1, memory_mib: int = 1000) -> None:
        device = GpuDevice(
            uuid=GpuUuid(name),
            index=0,
            vendor="NVIDIA",
            type="A100",
            slots=10,
            memory_mib=memory_mib,
            core_percent=100,
        )
        self.rows[name] = LedgerCard(
            node=NodeName(node), usage=DeviceUsage(device=device), version=version
        )

    def use(self, name: str, memory_mib: int) -> CardCounters:
        card = self.rows[name]
        usage = replace(card.usage, used_memory_mib=memory_mib, used_slots=1)
        self.rows[name] = replace(card, usage=usage, version=card.version + 1)
        counted = counters(name, version=card.version + 1, memory_mib=memory_mib)
        return replace(counted, node=card.node)

    def take(self, card: CardDemand) -> CardCounters:
        usage = self.rows[card.uuid].usage
        counted = self.use(card.uuid, usage.used_memory_mib + card.memory_mib)
        self.rows[card.uuid] = replace(
            self.rows[card.uuid],
            usage=replace(usage, used_memory_mib=counted.used_memory_mib, used_slots=1),
        )
        return counted


def counters(name: str, *, version: int, memory_mib: int) -> CardCounters:
    return CardCounters(
        node="n",
        uuid=GpuUuid(name),
        used_slots=1,
        used_memory_mib=memory_mib,
        used_core_percent=0,
        version=version,
    )


def used(view: LedgerSnapshotCache, node: str = "n") -> list[int]:
    return [state.usage.used_memory_mib for state in view.cluster.cards(NodeName(node))]


async def test_counters_of_our_own_commit_need_no_reading() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()

    view.apply([reader.use("GPU-0", 400)])

    assert used(view) == [400]
    assert not await view.refresh()
    assert reader.full_reads == 1


async def test_a_promise_that_the_ledger_counts_as_it_was_made_changes_nothing() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    first, second = demand("GPU-0", 100), demand("GPU-0", 300)
    view.promise(first)
    view.promise(second)
    before = view.cluster.version

    view.written([(first, [reader.use("GPU-0", 100)])])

    assert (view.cluster.version, used(view)) == (before, [400])
    assert not await view.refresh(), "the ledger's version was not taken over"
    view.settle(second)
    assert used(view) == [100]


async def test_where_the_ledger_counts_something_else_too_it_is_taken_over() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    one, gone = demand("GPU-0", 100), demand("GPU-1", 300)
    view.promise(one)
    view.promise(gone)
    before = view.cluster.version

    view.written([(one, [reader.use("GPU-0", 400)]), (gone, [])])

    assert view.cluster.version > before
    assert used(view) == [400]


async def test_an_older_count_changes_nothing() -> None:
    reader = Reader()
    reader.put("GPU-0", version=5)
    view = LedgerSnapshotCache(reader)
    await view.refresh()

    view.apply([counters("GPU-0", version=5, memory_mib=999)])

    assert used(view) == [0]


async def test_what_others_did_is_found_by_the_tally() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.use("GPU-0", 400)

    assert await view.refresh()
    assert used(view) == [400]


async def test_a_gap_in_the_versions_makes_the_node_be_read_again() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.put("GPU-0", version=2, memory_mib=500)

    view.apply([reader.use("GPU-0", 400)])
    await view.refresh()

    [state] = view.cluster.cards(NodeName("n"))
    assert state.usage.device.memory_mib == 500
    assert state.usage.used_memory_mib == 400


async def test_a_node_that_could_not_be_read_again_stays_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.put("GPU-0", version=2, memory_mib=500)
    view.apply([reader.use("GPU-0", 400)])

    async def away(_nodes: object) -> list[LedgerCard]:
        raise Unavailable("Postgres")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "cards", away)
        with pytest.raises(Unavailable):
            await view.refresh()
    await view.refresh()

    [card] = view.cluster.cards(NodeName("n"))
    assert card.usage.device.memory_mib == 500


async def test_a_card_that_went_leaves_the_view() -> None:
    reader = Reader()
    reader.put("GPU-0")
    reader.put("GPU-1", node="m")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    del reader.rows["GPU-0"]

    await view.refresh()

    assert list(view.cluster.nodes) == ["m"]


async def test_a_card_that_moved_is_on_its_new_node_only() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.put("GPU-0", node="m", version=2)

    await view.refresh()

    assert view.cluster.cards(NodeName("n")) == ()
    assert len(view.cluster.cards(NodeName("m"))) == 1


async def test_a_card_leaves_its_old_node_when_the_new_one_is_read_alone() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.put("GPU-0", node="m", version=2)

    await view.refresh_node(NodeName("m"))

    assert list(view.cluster.nodes) == ["m"]
    assert not await view.refresh()


async def test_an_old_node_that_cannot_be_read_now_stays_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    reader.put("GPU-0", node="m", version=2)
    cards = reader.cards

    async def away(nodes: Sequence[NodeName]) -> list[LedgerCard]:
        if "n" in nodes:
            raise Unavailable("Postgres")
        return await cards(nodes)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "cards", away)
        with pytest.raises(Unavailable):
            await view.refresh_node(NodeName("m"))
    await view.refresh()

    assert list(view.cluster.nodes) == ["m"]


CARDS = ("a", "b", "c")
change = st.one_of(
    st.tuples(st.just("use"), st.sampled_from(CARDS), st.integers(0, 1000)),
    st.tuples(st.just("capacity"), st.sampled_from(CARDS), st.integers(1, 2000)),
    st.tuples(st.just("move"), st.sampled_from(CARDS), st.sampled_from(["n", "m"])),
    st.tuples(st.just("swap"), st.sampled_from(CARDS), st.none()),
    st.tuples(st.just("refresh"), st.none(), st.none()),
    st.tuples(st.just("read"), st.sampled_from(["n", "m"]), st.none()),
    st.tuples(st.just("deliver"), st.integers(0, 30), st.none()),
    st.tuples(st.just("promise"), st.sampled_from(CARDS), st.integers(1, 100)),
    st.tuples(st.just("settle"), st.integers(0, 5), st.none()),
    st.tuples(st.just("written"), st.integers(0, 3), st.integers(0, 1)),
)


@settings(max_examples=50)
@given(script=st.lists(change, max_size=30))
def test_a_view_that_lived_through_it_all_is_the_one_that_is_built_again(
    script: list[tuple[str, Any, Any]],
) -> None:
    """Events are lost, come late, twice and in any order; the ledger is compared now and then."""

    async def run() -> None:
        reader, sent, promised = Reader(), [], []
        for name in CARDS:
            reader.put(name)
        live = LedgerSnapshotCache(reader)
        await live.refresh()
        names = dict(zip(CARDS, CARDS, strict=True))
        for step, what, value in script:
            if step == "refresh":
                await live.refresh()
            elif step == "read":
                await live.refresh_node(NodeName(what))
            elif step == "deliver":
                live.apply(sent[what : what + 1])
            elif step == "promise":
                promised.append(demand(names[what], value))
                live.promise(promised[-1])
            elif step == "settle":
                for one in promised[what : what + 1]:
                    live.settle(one)
                    promised.remove(one)
            elif step == "written":
                done, promised[:what] = promised[:what], []
                batch = [one for one in done if one.uuid in reader.rows]
                counted = [reader.take(one) for one in batch]
                sent += counted
                if value:  # the bus was quicker than the answer
                    live.apply(counted)
                live.written([(one, [each]) for one, each in zip(batch, counted, strict=True)])
                for one in done:
                    if one not in batch:
                        live.settle(one)
            elif step == "use":
                sent.append(reader.use(names[what], value))
            elif step == "swap":
                # Another card in its place.
                old = reader.rows.pop(names[what])
                names[what] += "'"
                reader.put(names[what], node=old.node, version=reader.next_version())
            else:
                card = reader.rows[names[what]]
                device, node = card.usage.device, card.node
                if step == "capacity":
                    device = replace(device, memory_mib=value)
                else:
                    node = NodeName(value)
                usage = replace(card.usage, device=device)
                reader.rows[names[what]] = LedgerCard(
                    node=node, usage=usage, version=card.version + 1
                )
        await live.refresh()
        fresh = LedgerSnapshotCache(reader)
        await fresh.refresh()
        for node in ("n", "m"):
            assert known(live, node, promised) == known(fresh, node)
        for one in promised:
            live.settle(one)
        for node in ("n", "m"):
            assert known(live, node) == known(fresh, node)

    asyncio.run(run())


def demand(name: str, memory_mib: int) -> CardDemand:
    return CardDemand(uuid=GpuUuid(name), slots=1, memory_mib=memory_mib, core_percent=0)


def known(
    view: LedgerSnapshotCache, node: str, promised: Sequence[CardDemand] = ()
) -> list[tuple[DeviceUsage, int]]:
    """All that a view has of a node's cards, but for what is promised."""
    if NodeName(node) not in view.cluster.nodes:
        return []
    cards = view.cluster.cards(NodeName(node))
    found = []
    for state in cards:
        usage = state.usage
        mine = [one for one in promised if one.uuid == usage.device.uuid]
        pure = replace(
            usage,
            used_slots=usage.used_slots - len(mine),
            used_memory_mib=usage.used_memory_mib - sum(one.memory_mib for one in mine),
        )
        found.append((pure, state.version))
    return sorted(found, key=lambda one: one[0].device.uuid)
