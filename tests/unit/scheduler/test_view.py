"""The view of the ledger's cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hami_scheduler.ports import LedgerCard, PairScores
from hami_scheduler.view import LedgerView
from hamicommon.db.ledger import CardCounters
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName


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
        return counters(name, version=card.version + 1, memory_mib=memory_mib)


def counters(name: str, *, version: int, memory_mib: int) -> CardCounters:
    return CardCounters(
        node="n",
        uuid=GpuUuid(name),
        used_slots=1,
        used_memory_mib=memory_mib,
        used_core_percent=0,
        version=version,
    )


def used(view: LedgerView, node: str = "n") -> list[int]:
    return [state.usage.used_memory_mib for state in view.cluster.cards(NodeName(node))]


async def test_counters_of_our_own_commit_need_no_reading() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerView(reader)
    await view.refresh()

    view.apply([reader.use("GPU-0", 400)])

    assert used(view) == [400]
    assert not await view.refresh()
    assert reader.full_reads == 1


async def test_an_older_count_changes_nothing() -> None:
    reader = Reader()
    reader.put("GPU-0", version=5)
    view = LedgerView(reader)
    await view.refresh()

    view.apply([counters("GPU-0", version=5, memory_mib=999)])

    assert used(view) == [0]


async def test_what_others_did_is_found_by_the_tally() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerView(reader)
    await view.refresh()
    reader.use("GPU-0", 400)

    assert await view.refresh()
    assert used(view) == [400]


async def test_a_gap_in_the_versions_makes_the_node_be_read_again() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerView(reader)
    await view.refresh()
    reader.put("GPU-0", version=2, memory_mib=500)

    view.apply([reader.use("GPU-0", 400)])
    await view.refresh()

    [state] = view.cluster.cards(NodeName("n"))
    assert state.usage.device.memory_mib == 500
    assert state.usage.used_memory_mib == 400


async def test_a_card_that_went_leaves_the_view() -> None:
    reader = Reader()
    reader.put("GPU-0")
    reader.put("GPU-1", node="m")
    view = LedgerView(reader)
    await view.refresh()
    del reader.rows["GPU-0"]

    await view.refresh()

    assert list(view.cluster.nodes) == ["m"]


async def test_a_card_that_moved_is_on_its_new_node_only() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = LedgerView(reader)
    await view.refresh()
    reader.put("GPU-0", node="m", version=2)

    await view.refresh()

    assert view.cluster.cards(NodeName("n")) == ()
    assert len(view.cluster.cards(NodeName("m"))) == 1
