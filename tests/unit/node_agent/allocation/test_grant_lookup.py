"""Finding whom an Allocate is for, where it was asked twice or the bus was late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hami_node_agent.allocation.grant_lookup import GrantFinder
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.candidates import Candidate, PodsSeen
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.ids import AllocationId
from hamicommon.domain.pod_ref import PodRef

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_container,
    a_grant,
    a_holding,
    a_record,
    a_share,
    node_ports,
)

IDS = {f"{CARD_A}-0"}
WITH_INIT = a_grant(
    a_container(a_share(), name="prepare", role="init"),
    a_container(a_share(), name="one", index=1),
    a_container(a_share(), name="two", index=2),
    pod="p",
)
PREPARE = a_record(WITH_INIT, "prepare", ids=IDS, nonce="prepare")
ONE = a_record(WITH_INIT, "one", ids=IDS, nonce="one")
TWO = a_record(WITH_INIT, "two", ids={f"{CARD_B}-0"}, nonce="two")


@dataclass
class World:
    """All that the finder asks, at rest."""

    held: tuple[Holding, ...] = ()
    connected: bool = True
    signed: tuple[NodeGrant, ...] = ()
    names: dict[str, PodRef] = field(default_factory=dict)
    saved: list[AgentState] = field(default_factory=list)

    def save(self, state: AgentState) -> None:
        self.saved.append(state)

    async def holdings(self) -> tuple[Holding, ...]:
        return self.held

    async def refresh(self) -> None:
        """The ledger has nothing new."""

    async def signed_grants(self) -> tuple[NodeGrant, ...]:
        return self.signed

    def seen(self) -> PodsSeen:
        return PodsSeen()

    def name_of(self, pod_uid: str) -> PodRef | None:
        return self.names.get(pod_uid)


def finder(world: World, *records: Record, book: GrantBook) -> tuple[GrantFinder, NodeState]:
    state = NodeState(world, AgentState().with_records(records))
    state.book = book
    return GrantFinder(node_ports(state, world), node_name="n", wait_s=0.0), state


async def test_an_answer_that_another_container_took_is_not_given_once_more() -> None:
    """The kubelet was killed after the first answer and asked for the init container again."""
    world = World(held=(a_holding("p", "prepare", ids=IDS, record=ONE),))
    looking, _state = finder(world, PREPARE, ONE, book=a_book(WITH_INIT))

    found = await looking.find(frozenset(IDS), {})

    assert isinstance(found, Candidate)
    assert found.container.name == "two"


async def test_the_same_app_container_again_gets_its_answer_again() -> None:
    world = World(held=(a_holding("p", "one", ids=IDS, record=ONE),))
    looking, _state = finder(world, PREPARE, ONE, book=a_book(WITH_INIT))

    assert await looking.find(frozenset(IDS), {}) == ONE


async def test_an_answer_that_a_killed_kubelet_did_not_store_comes_before_stored_ones() -> None:
    world = World(
        held=(
            a_holding("p", "prepare", ids=IDS, record=PREPARE),
            a_holding("p", "two", ids={f"{CARD_B}-0"}, record=TWO),
        )
    )
    looking, _state = finder(world, PREPARE, ONE, TWO, book=a_book(WITH_INIT))

    assert await looking.find(frozenset(IDS), {}) == ONE


async def test_an_answer_that_was_lost_carries_the_name_of_who_has_it() -> None:
    """The sweep asks the API server by this name."""
    owner = a_grant(pod="owner")
    meant = a_record(owner, ids=IDS)
    world = World(
        held=(a_holding("taker", ids=IDS, record=meant),),
        names={"taker": PodRef(uid="taker", namespace="default", name="name-of-taker")},
    )
    looking, state = finder(world, meant, book=a_book(owner))

    again = await looking.find(frozenset(IDS), {})

    assert isinstance(again, Candidate)
    [lost] = state.saved.records.values()
    assert (lost.pod_name, lost.pod_uid, lost.allocation_id) == ("name-of-taker", "taker", "")


async def test_an_answer_kept_for_a_pod_and_taken_by_an_unscheduled_one_is_not_its_own() -> None:
    owner = a_grant(pod="owner")
    kept = a_record(owner, ids=IDS).lost_to("owner", "main", namespace="default", pod_name="o")
    world = World(held=(a_holding("unscheduled", ids=IDS, record=kept),))
    looking, state = finder(world, kept, book=a_book(owner))

    found = await looking.find(frozenset({f"{CARD_B}-0"}), {})

    assert isinstance(found, Candidate)
    assert found.grant == owner
    assert state.saved.records[kept.nonce].counts_for("unscheduled", "main")


async def test_an_answer_kept_for_a_pod_that_no_kubelet_stored_leaves_the_pod_waiting() -> None:
    """Asked twice by a killed kubelet, and both times for another pod than was meant."""
    owner, other = a_grant(pod="owner"), a_grant(pod="other", token=2)
    kept = a_record(owner, ids=IDS).lost_to("owner", "main", namespace="default", pod_name="o")
    others = a_record(other, ids={f"{CARD_B}-1"}, nonce="nonce-2")
    world = World(held=(a_holding("other", ids={f"{CARD_B}-1"}, record=others),))
    looking, state = finder(world, kept, others, book=a_book(owner, other))

    found = await looking.find(frozenset({f"{CARD_B}-0"}), {})

    assert isinstance(found, Candidate)
    assert found.grant == owner
    assert list(state.saved.records) == ["nonce-2"]


async def test_without_the_bus_the_annotation_comes_before_what_the_bus_last_announced() -> None:
    failed = a_grant(a_container(a_share(CARD_A)), pod="p", token=7)
    bound = replace(
        a_grant(a_container(a_share(CARD_B)), pod="p", token=9),
        allocation_id=AllocationId("second attempt"),
    )
    looking, _state = finder(World(connected=False, signed=(bound,)), book=a_book(failed))

    found = await looking.find(frozenset(IDS), {})

    assert isinstance(found, Candidate)
    assert found.grant == bound
