"""The cards and quotas in memory: read from the ledger, assumed, confirmed, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState, Forgotten
from hami_scheduler.placement.placer import assumed_allocation
from hami_scheduler.ports.ledger import LedgerCard, PairScores
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    DeviceShare,
)
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.ledger.card_rows import CardDemand, wanted_by
from hamicommon.ledger.model import (
    CardCounters,
    Change,
    Command,
    Draft,
    Entry,
    QuotaUse,
    StateStep,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.ledger.allocation_stores import container, draft
from tests.unit.devices import a_device


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

    async def list_uses(self) -> list[QuotaUse]:
        return list(self.quotas)

    quotas: list[QuotaUse] = field(default_factory=list)
    entered: int = 0

    def next_version(self) -> int:
        """Return a version higher than any before, as the ledger gives to a card that enters."""
        self.entered += 1
        return self.entered * 1_000

    def put(self, name: str, *, node: str = "n", version: int = 1, memory_mib: int = 1000) -> None:
        device = a_device(name, type="A100", memory_mib=memory_mib)
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


class NoGrants:
    """A ledger without a grant."""

    async def standing(self) -> AsyncIterator[list[Allocation]]:
        for some in ():
            yield some


def state_of(reader: Reader, **options: Any) -> ClusterState:
    made: Any = NoGrants()
    made_of = {"quota_store": reader, "grants": made, "rules": {}, "ttl_s": 60.0}
    return ClusterState(reader, **{**made_of, **options})


async def load_state(*cards: str) -> tuple[Reader, ClusterState]:
    """A ledger with these cards on one node, and a state that has read it."""
    reader = Reader()
    for card in cards:
        reader.put(card)
    view = state_of(reader)
    await view.refresh()
    return reader, view


def assuming(
    pod: str, card: str, memory_mib: int, detail: Mapping[str, Any] | None = None
) -> Draft:
    share = DeviceShare(
        uuid=GpuUuid(card),
        vendor="NVIDIA",
        memory_mib=memory_mib,
        core_percent=0,
        detail=detail or {},
    )
    return draft(pod, replace(container(), shares=(share,)), node=NodeName("n"))


def change_of(*counted: CardCounters, entered: Draft | None = None) -> Change:
    entered = entered or assuming("other", "GPU-0", 1)
    allocation = replace(
        assumed_allocation(entered, datetime.now(UTC)), state=AllocationState.BINDING
    )
    return Change(allocation=allocation, sequence=1, counters=counted)


def make_granted(entered: Draft, counted: CardCounters) -> tuple[Entry, Change]:
    return Entry(draft=entered), change_of(counted, entered=entered)


def read_used(view: ClusterState, node: str = "n") -> list[int]:
    return [state.usage.used_memory_mib for state in view.cluster.cards(NodeName(node))]


async def test_counters_of_our_own_commit_need_no_reading() -> None:
    reader, view = await load_state("GPU-0")

    view.apply(change_of(reader.use("GPU-0", 400)))

    assert read_used(view) == [400]
    assert not await view.refresh()
    assert reader.full_reads == 1


async def test_an_assumption_that_the_ledger_counts_as_it_was_made_changes_nothing() -> None:
    reader, view = await load_state("GPU-0")
    first, second = assuming("a", "GPU-0", 100), assuming("b", "GPU-0", 300)
    view.assume(first)
    view.assume(second)
    before = view.cluster.version

    view.on_committed([make_granted(first, reader.use("GPU-0", 100))])

    assert (view.cluster.version, read_used(view)) == (before, [400])
    assert view.assumption(PodUid("a")) is None
    assert not await view.refresh(), "the ledger's version was not taken over"
    assert view.forget(PodUid("b"), Forgotten.GIVEN_UP)
    assert read_used(view) == [100]


async def test_counters_of_a_whole_batch_are_never_counted_beside_its_assumptions() -> None:
    reader, view = await load_state("GPU-0")
    drafts = [assuming(pod, "GPU-0", 100) for pod in "abc"]
    for one in drafts:
        view.assume(one)

    counted = reader.use("GPU-0", 300)
    view.on_committed([make_granted(one, counted) for one in drafts])

    assert read_used(view) == [300]


async def test_a_grant_that_was_read_before_its_commit_was_answered_counts_once() -> None:
    reader, view = await load_state("GPU-0")
    one = assuming("a", "GPU-0", 100)
    view.assume(one)
    counted = reader.use("GPU-0", 100)
    await view.refresh()

    view.on_committed([make_granted(one, counted)])

    assert read_used(view) == [100]


async def test_a_refused_grant_is_forgotten_and_waiting_pods_are_tried() -> None:
    reader, freed = Reader(), list[str]()
    reader.put("GPU-0")
    view = state_of(reader, on_freed=lambda: freed.append("freed"))
    await view.refresh()
    one = assuming("a", "GPU-0", 100)
    view.assume(one)

    view.on_committed([(Entry(draft=one), Conflict("refused"))])

    assert (view.assumption(PodUid("a")), read_used(view), freed) == (None, [0], ["freed"])


async def test_a_commit_of_an_earlier_assumption_leaves_the_later_one() -> None:
    _, view = await load_state("GPU-0")
    early, late = assuming("a", "GPU-0", 100), assuming("a", "GPU-0", 200)
    view.assume(early)
    view.assume(late)

    view.on_committed([(Entry(draft=early), Conflict("refused"))])

    assert read_used(view) == [200]


async def test_an_assumption_is_forgotten_when_its_time_is_over() -> None:
    reader, now = Reader(), 0.0
    reader.put("GPU-0")
    view = state_of(reader, ttl_s=60.0, clock=lambda: now)
    await view.refresh()
    view.assume(assuming("a", "GPU-0", 100))
    now = 59.0
    view.assume(assuming("b", "GPU-0", 200))
    view.expire()
    assert read_used(view) == [300]

    now = 61.0
    view.expire()

    assert read_used(view) == [200]


async def test_where_another_grant_is_counted_too_the_counters_are_taken_over() -> None:
    reader, view = await load_state("GPU-0")
    one = assuming("a", "GPU-0", 100)
    view.assume(one)
    before = view.cluster.version

    view.on_committed([make_granted(one, reader.use("GPU-0", 400))])

    assert view.cluster.version > before
    assert read_used(view) == [400]


async def test_places_on_a_card_are_assumed_too() -> None:
    _, view = await load_state("GPU-0")
    place = {"placement": {"start": 0, "size": 4}}
    view.assume(assuming("a", "GPU-0", 100, detail=place))
    assert [card.usage.holdings for card in view.cluster.cards(NodeName("n"))] == [(place,)]

    view.forget(PodUid("a"), Forgotten.GIVEN_UP)

    assert [card.usage.holdings for card in view.cluster.cards(NodeName("n"))] == [()]


async def test_a_pod_whose_binding_the_ledger_has_is_known_until_it_is_bound() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = state_of(reader)
    await view.load()
    one = assuming("a", "GPU-0", 100)
    command, change = make_granted(one, reader.use("GPU-0", 100))

    view.on_committed([(command, change)])
    assert view.binding_node(PodUid("a")) == "n"

    bound = replace(change, allocation=replace(change.allocation, state=AllocationState.BOUND))
    view.on_committed(
        [
            (
                StateStep(
                    allocation_id=one.allocation_id,
                    sources=frozenset(),
                    target=AllocationState.BOUND,
                ),
                bound,
            )
        ]
    )
    assert view.binding_node(PodUid("a")) is None


async def test_loading_forgets_what_was_assumed_before() -> None:
    reader = Reader()
    reader.put("GPU-0")
    view = state_of(reader)
    await view.load()
    view.assume(assuming("a", "GPU-0", 100))

    await view.load()

    assert read_used(view) == [0]


async def test_an_older_count_changes_nothing() -> None:
    reader = Reader()
    reader.put("GPU-0", version=5)
    view = state_of(reader)
    await view.refresh()

    view.apply(change_of(counters("GPU-0", version=5, memory_mib=999)))

    assert read_used(view) == [0]


async def test_a_gap_in_the_versions_makes_the_node_be_read_again() -> None:
    reader, view = await load_state("GPU-0")
    reader.put("GPU-0", version=2, memory_mib=500)

    view.apply(change_of(reader.use("GPU-0", 400)))
    await view.refresh()

    [state] = view.cluster.cards(NodeName("n"))
    assert state.usage.device.memory_mib == 500
    assert state.usage.used_memory_mib == 400


async def test_a_node_that_could_not_be_read_again_stays_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, view = await load_state("GPU-0")
    reader.put("GPU-0", version=2, memory_mib=500)
    view.apply(change_of(reader.use("GPU-0", 400)))

    async def raise_unavailable(_nodes: object) -> list[LedgerCard]:
        raise Unavailable("Postgres")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "cards", raise_unavailable)
        with pytest.raises(Unavailable):
            await view.refresh()
    await view.refresh()

    [card] = view.cluster.cards(NodeName("n"))
    assert card.usage.device.memory_mib == 500


async def test_a_card_that_went_leaves_the_view() -> None:
    reader = Reader()
    reader.put("GPU-0")
    reader.put("GPU-1", node="m")
    view = state_of(reader)
    await view.refresh()
    del reader.rows["GPU-0"]

    await view.refresh()

    assert list(view.cluster.nodes) == ["m"]


async def test_a_card_leaves_its_old_node_when_the_new_one_is_read_alone() -> None:
    reader, view = await load_state("GPU-0")
    reader.put("GPU-0", node="m", version=2)

    await view.refresh_nodes(NodeName("m"))

    assert list(view.cluster.nodes) == ["m"]
    assert not await view.refresh()


async def test_an_old_node_that_cannot_be_read_now_stays_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, view = await load_state("GPU-0")
    reader.put("GPU-0", node="m", version=2)
    cards = reader.cards

    async def read_other_cards(nodes: Sequence[NodeName]) -> list[LedgerCard]:
        if "n" in nodes:
            raise Unavailable("Postgres")
        return await cards(nodes)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "cards", read_other_cards)
        with pytest.raises(Unavailable):
            await view.refresh_nodes(NodeName("m"))
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
    st.tuples(st.just("assume"), st.sampled_from(CARDS), st.integers(1, 100)),
    st.tuples(st.just("forget"), st.integers(0, 5), st.none()),
    st.tuples(st.just("commit"), st.integers(0, 3), st.integers(0, 1)),
)


@settings(max_examples=50)
@given(script=st.lists(change, max_size=30))
def test_a_view_that_lived_through_it_all_is_the_one_that_is_built_again(
    script: list[tuple[str, Any, Any]],
) -> None:
    """Events are lost, come late, twice and in any order; the ledger is compared now and then."""

    async def run() -> None:
        reader, sent, assumed = Reader(), [], []
        for name in CARDS:
            reader.put(name)
        live = state_of(reader)
        await live.refresh()
        names = dict(zip(CARDS, CARDS, strict=True))
        for number, (step, what, value) in enumerate(script):
            if step == "refresh":
                await live.refresh()
            elif step == "read":
                await live.refresh_nodes(NodeName(what))
            elif step == "deliver":
                for counted in sent[what : what + 1]:
                    live.apply(change_of(counted))
            elif step == "assume":
                assumed.append(assuming(f"p{number}", names[what], value))
                live.assume(assumed[-1])
            elif step == "forget":
                for one in assumed[what : what + 1]:
                    live.forget(one.pod_uid, Forgotten.GIVEN_UP)
                    assumed.remove(one)
            elif step == "commit":
                done, assumed[:what] = assumed[:what], []
                commands: list[tuple[Command, Change | HamiError | None]] = []
                for one in done:
                    [card] = wanted_by(one, {})
                    if card.uuid in reader.rows:
                        sent.append(reader.take(card))
                        commands.append(make_granted(one, sent[-1]))
                    else:
                        commands.append((Entry(draft=one), Conflict("the card is gone")))
                if value:  # the comparison was quicker than the answer
                    await live.refresh()
                live.on_committed(commands)
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
        fresh = state_of(reader)
        await fresh.refresh()
        for node in ("n", "m"):
            assert read_state(live, node, assumed) == read_state(fresh, node)
        for one in assumed:
            live.forget(one.pod_uid, Forgotten.GIVEN_UP)
        for node in ("n", "m"):
            assert read_state(live, node) == read_state(fresh, node)

    asyncio.run(run())


def read_state(
    view: ClusterState, node: str, assumed: Sequence[Draft] = ()
) -> list[tuple[DeviceUsage, int]]:
    """Return a node's cards in the state, without the assumed placements."""
    if NodeName(node) not in view.cluster.nodes:
        return []
    cards = view.cluster.cards(NodeName(node))
    found = []
    for state in cards:
        usage = state.usage
        wanted = [card for one in assumed for card in wanted_by(one, {})]
        mine = [card for card in wanted if card.uuid == usage.device.uuid]
        pure = replace(
            usage,
            used_slots=usage.used_slots - len(mine),
            used_memory_mib=usage.used_memory_mib - sum(one.memory_mib for one in mine),
        )
        found.append((pure, state.version))
    return sorted(found, key=lambda one: one[0].device.uuid)
