"""Inventories that arrive together are written together, and none blocks another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hami_scheduler.bus import inventories
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.drift import Drift, NodeProblems
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import AgentInventory, RecordedInventory
from hamicommon.bus.client import Message
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.events import Inventory, InventoryDevice, inventory_subject

from tests.simulation.stores.inventories import Inventories
from tests.unit.scheduler.states import state_of


class Store(Inventories):
    """Counts the calls; `broken` nodes fail the whole call."""

    def __init__(self, *, broken: Sequence[str] = (), error: Exception | None = None) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.calls: list[list[str]] = []
        self.compared: list[int] = []
        """Sequences of the reports that came with their cards."""
        self._broken, self._error = broken, error or Conflict("a card is locked")

    async def record_all(
        self, reports: Sequence[AgentInventory]
    ) -> Sequence[RecordedInventory | None]:
        names = [str(each.inventory.node) for each in reports]
        self.compared += [each.sequence for each in reports]
        self.calls.append(names)
        if set(names) & set(self._broken):
            raise self._error
        return await super().record_all(reports)


class Journal:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        assert repaired
        self.lines.append((kind, subject, detail))


def message(node: str, sequence: int, *, memory_mib: int = 1000, on: str = "") -> Message:
    card = InventoryDevice(
        uuid=f"GPU-{node}",
        index=0,
        vendor="NVIDIA",
        type="NVIDIA A100",
        slots=4,
        memory_mib=memory_mib,
        core_percent=100,
    )
    report = Inventory(
        node=node,
        agent_id="a",
        sequence=0,
        observed_at=datetime.now(UTC),
        devices=(card,),
    )
    return Message(
        subject=inventory_subject(on or node),
        data=report.model_copy(update={"sequence": sequence}).model_dump_json().encode(),
        stream_sequence=sequence,
        deliveries=1,
    )


class Taking:
    def __init__(self, store: Store) -> None:
        self.heard: list[str] = []
        self.freed = 0
        self.written: list[str] = []
        self.view = state_of(store)
        instruments = SchedulerInstruments()
        self.journal = Journal()
        drift = Drift(self.journal, instruments)
        self.reports = InventoryReports(
            store=store,
            view=self.view,
            refused=NodeProblems(kind="card-refused", drift=drift),
            drift=drift,
            instruments=instruments,
            on_report=self.heard.append,
            on_written=self._wrote,
        )

    def _wrote(self, nodes: Collection[NodeName]) -> None:
        self.freed += 1
        self.written += sorted(nodes)

    def memory_mib(self, node: str) -> int:
        [card] = self.view.cluster.cards(NodeName(node))
        return card.usage.device.memory_mib


async def test_many_nodes_are_one_call_and_their_heartbeats_none() -> None:
    store = Store()
    taking = Taking(store)
    names = [f"n{number}" for number in range(50)]

    assert await taking.reports.handle_all([message(name, 1) for name in names]) == [None] * 50
    assert store.calls == [names]
    assert taking.freed == 1
    assert taking.written == sorted(names)
    assert [taking.memory_mib(name) for name in names] == [1000] * 50

    assert await taking.reports.handle_all([message(name, 2) for name in names]) == [None] * 50
    assert store.calls == [names]
    assert taking.heard == names * 2


async def test_what_was_written_is_passed_on_though_it_could_not_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taking = Taking(Store())

    async def raise_unavailable(_nodes: Collection[NodeName]) -> None:
        raise Unavailable("Postgres is not available")

    monkeypatch.setattr(taking.view, "refresh_nodes", raise_unavailable)

    assert [type(it) for it in await taking.reports.handle_all([message("n1", 1)])] == [Unavailable]
    assert taking.written == ["n1"]


async def test_another_run_of_the_agent_is_no_heartbeat_of_the_one_before() -> None:
    store = Store()
    taking = Taking(store)
    await taking.reports.handle_all([message("n1", 1)])

    again = message("n1", 1)
    restarted = replace(again, data=again.data.replace(b'"agent_id":"a"', b'"agent_id":"b"'))

    assert await taking.reports.handle_all([restarted]) == [None]
    assert store.calls == [["n1"], ["n1"]]


@pytest.mark.parametrize(
    ("written", "instead", "answer"),
    [
        (b'"node":"n1"', b'"node":"n2"', InvalidRequest),
        (b'"version":1', b'"version":9', InvalidRequest),
        (b'"agent_id":"a",', b"", InvalidRequest),
        (b'"agent_id":"a"', b'"agent_id":"a","more":{"devices":[]}', type(None)),
        (b'"agent_id":"a"', b'"agent_id":"a","more":"\\"devices\\":"', type(None)),
    ],
)
async def test_the_head_of_a_heartbeat_is_read_whatever_its_cards_are(
    written: bytes, instead: bytes, answer: type[object]
) -> None:
    store = Store()
    taking = Taking(store)
    await taking.reports.handle_all([message("n1", 1)])
    again = message("n1", 2)
    changed = replace(again, data=again.data.replace(written, instead))

    [found] = await taking.reports.handle_all([changed])

    assert type(found) is answer
    assert taking.memory_mib("n1") == 1000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(inventories, "time", made)
    return made


async def beats(taking: Taking, clock: Clock, sequences: Sequence[int]) -> None:
    """Send one every 10 s."""
    for sequence in sequences:
        clock.now += 10
        assert await taking.reports.handle_all([message("n1", sequence)]) == [None]


@pytest.mark.parametrize("step", [1, 2], ids=["each", "every other one"])
async def test_a_report_is_compared_with_the_ledger_each_30_s(clock: Clock, step: int) -> None:
    store = Store()
    taking = Taking(store)
    sequences = range(1, 1 + 61 * step, step)
    await beats(taking, clock, sequences)

    assert store.compared == list(sequences)[::3]
    assert len(store.calls) == 1 + 60 // 3
    assert len(taking.heard) == 61


async def test_a_node_that_was_gone_is_compared_within_30_s(clock: Clock) -> None:
    store = Store()
    taking = Taking(store)
    await beats(taking, clock, [1, 2, 3])
    await store.mark_gone(NodeName("n1"))

    await beats(taking, clock, [4, 5])

    assert store.compared == [1, 4]
    assert taking.heard == ["n1"] * 5


async def test_what_changes_between_two_heartbeats_is_written_in_order() -> None:
    store = Store()
    taking = Taking(store)
    together = [
        message("n1", 1),
        message("n2", 1),
        message("n1", 2, memory_mib=500),
        message("n1", 3, memory_mib=700),
    ]

    assert await taking.reports.handle_all(together) == [None] * 4
    assert store.calls == [["n1", "n2"], ["n1"], ["n1"]]
    assert taking.memory_mib("n1") == 700


async def test_one_that_fails_keeps_no_other_from_being_taken() -> None:
    store = Store(broken=["n2"])
    taking = Taking(store)

    answers = await taking.reports.handle_all([message(f"n{n}", 1) for n in (1, 2, 3)])

    assert [type(each) for each in answers] == [type(None), Conflict, type(None)]
    assert taking.heard == ["n1", "n3"]


async def test_a_ledger_that_is_away_is_asked_once_and_all_come_again() -> None:
    store = Store(broken=["n2"], error=Unavailable("Postgres is not available"))
    taking = Taking(store)

    answers = await taking.reports.handle_all([message(f"n{n}", 1) for n in (1, 2, 3)])

    assert [type(each) for each in answers] == [Unavailable] * 3
    assert len(store.calls) == 1


async def test_a_node_speaks_on_its_own_subject_alone() -> None:
    store = Store()
    taking = Taking(store)

    answers = await taking.reports.handle_all([message("n1", 1, on="n2"), message("n3", 1)])

    assert isinstance(answers[0], InvalidRequest)
    assert answers[1] is None
    assert store.calls == [["n3"]]


async def test_a_cancelled_round_is_no_answer() -> None:
    class Hanging(Store):
        async def record_all(
            self, reports: Sequence[AgentInventory]
        ) -> Sequence[RecordedInventory | None]:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Taking(Hanging()).reports.handle_all([message("n1", 1)])


async def test_a_report_that_is_left_out_is_heard_all_the_same() -> None:
    taking = Taking(Store())
    await taking.reports.handle_all([message("n", 5)])

    assert await taking.reports.handle_all([message("n", 4, memory_mib=2000)]) == [None]

    assert taking.heard == ["n", "n"]
    assert taking.memory_mib("n") == 1000


async def test_an_agent_whose_reports_are_left_out_again_and_again_is_believed() -> None:
    taking = Taking(Store())
    await taking.reports.handle_all([message("n", 2**53 - 1)])

    for sequence in range(5, 9):
        await taking.reports.handle_all([message("n", sequence, memory_mib=2000)])

    assert taking.memory_mib("n") == 2000
    assert taking.heard == ["n"] * 5
    [(kind, subject, detail)] = taking.journal.lines
    assert (kind, subject) == ("inventory-number", "n")
    assert f"number {2**53 - 1}" in detail
    assert "reports 7" in detail


async def test_one_late_report_that_comes_again_and_again_is_not_believed() -> None:
    taking = Taking(Store())
    await taking.reports.handle_all([message("n", 9)])

    for _ in range(5):
        await taking.reports.handle_all([message("n", 4, memory_mib=2000)])

    assert taking.memory_mib("n") == 1000
    assert taking.journal.lines == []


@pytest.mark.parametrize("sequence", [-1, 2**53, 2**63 - 1])
async def test_a_number_that_no_agent_counts_to_is_refused(sequence: int) -> None:
    taking = Taking(Store())
    [answer] = await taking.reports.handle_all([message("n", sequence)])

    assert isinstance(answer, InvalidRequest)
    assert taking.heard == []
