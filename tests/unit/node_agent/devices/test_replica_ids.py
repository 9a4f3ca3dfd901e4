import pytest
from hami_node_agent.devices.replica_ids import card_of, preferred_ids, replicas_of
from hamicommon.domain.ids import GpuUuid
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_agent.builders import CARD_A, CARD_B


@pytest.mark.parametrize(
    ("device_id", "card"),
    [
        (f"{CARD_A}-0", CARD_A),
        (f"{CARD_A}-12", CARD_A),
        (CARD_A, CARD_A),
        ("GPU-03f69c50-207a-2038-9b45-230000000000", "GPU-03f69c50-207a-2038-9b45-230000000000"),
        ("MIG-1234::3", "MIG-1234"),
        ("some-card", "some-card"),
        (f"{CARD_A}-x", f"{CARD_A}-x"),
    ],
)
def test_the_card_of_an_id_is_all_but_its_replica(device_id: str, card: str) -> None:
    assert card_of(device_id) == card


def test_a_card_has_one_id_per_slot_and_each_leads_back_to_it() -> None:
    ids = [str(replica) for replica in replicas_of(CARD_A, 10)]

    assert ids == [f"{CARD_A}-{n}" for n in range(10)]
    assert {card_of(device_id) for device_id in ids} == {CARD_A}


def test_free_slots_of_the_granted_cards_are_preferred_lowest_first() -> None:
    available = [f"{CARD_B}-3", f"{CARD_A}-10", f"{CARD_A}-2", f"{CARD_B}-1"]

    chosen = preferred_ids([CARD_B, CARD_A], available=available, must_include=[], size=2)

    assert chosen == (f"{CARD_B}-1", f"{CARD_A}-2")


def test_ids_that_must_be_included_count_for_their_card() -> None:
    chosen = preferred_ids(
        [CARD_A, CARD_B],
        available=[f"{CARD_A}-0", f"{CARD_A}-1", f"{CARD_B}-0"],
        must_include=[f"{CARD_A}-1"],
        size=2,
    )

    assert chosen == (f"{CARD_A}-1", f"{CARD_B}-0")


def test_in_place_of_a_granted_card_without_a_free_slot_the_fullest_other_is_preferred() -> None:
    fuller, emptier = "GPU-c", "GPU-d"
    available = [f"{CARD_B}-0", f"{CARD_B}-1", f"{emptier}::0", f"{emptier}::1", f"{fuller}::4"]

    chosen = preferred_ids([CARD_A, CARD_B], available=available, must_include=[], size=2)

    assert chosen == (f"{CARD_B}-0", f"{fuller}::4")


def test_a_card_comes_twice_only_when_every_other_has_come() -> None:
    available = [f"{CARD_A}-{n}" for n in range(3)] + [f"{CARD_B}-7"]

    chosen = preferred_ids([], available=available, must_include=[], size=3)

    assert chosen == (f"{CARD_B}-7", f"{CARD_A}-0", f"{CARD_A}-1")


@given(
    ids=st.sets(st.tuples(st.sampled_from([CARD_A, CARD_B]), st.integers(0, 9))),
    must=st.integers(0, 3),
    size=st.integers(0, 8),
    granted=st.lists(st.sampled_from([CARD_A, CARD_B]), max_size=3),
)
def test_what_is_preferred_is_distinct_available_and_as_much_as_there_is(
    ids: set[tuple[GpuUuid, int]], must: int, size: int, granted: list[GpuUuid]
) -> None:
    available = [f"{card}-{number}" for card, number in ids]

    chosen = preferred_ids(granted, available=available, must_include=available[:must], size=size)

    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(chosen) <= set(available)
    assert set(available[: min(must, size)]) <= set(chosen)


def test_never_more_ids_than_asked_for() -> None:
    cards = [GpuUuid(CARD_A), GpuUuid(CARD_B)]

    chosen = preferred_ids(
        cards, available=[f"{CARD_A}-0", f"{CARD_B}-0"], must_include=[f"{CARD_B}-0"], size=1
    )

    assert chosen == (f"{CARD_B}-0",)
