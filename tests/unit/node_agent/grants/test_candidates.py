from dataclasses import replace

import pytest
from hami_node_agent.grants.book import GrantBook
from hami_node_agent.grants.candidates import Candidate, PodsSeen, candidates, repeated, roomiest
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import PodUid

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_card,
    a_container,
    a_grant,
    a_record,
    a_share,
)

NOBODY = PodsSeen()
ID_0, ID_1 = f"{CARD_A}-0", f"{CARD_A}-1"


def pods_of(found: list[Candidate]) -> list[str]:
    return [candidate.grant.pod_uid for candidate in found]


def test_only_a_container_that_wants_exactly_this_many_cards_is_meant() -> None:
    book = a_book(
        a_grant(a_container(a_share()), pod="one"),
        a_grant(a_container(a_share(CARD_A), a_share(CARD_B)), pod="two"),
    )

    assert pods_of(candidates(book, (), 2, NOBODY)) == ["two"]
    assert candidates(book, (), 3, NOBODY) == []


def test_the_pod_that_was_bound_first_comes_first() -> None:
    book = a_book(a_grant(pod="a", token=7), a_grant(pod="b", token=5))

    assert pods_of(candidates(book, (), 1, NOBODY)) == ["b", "a"]


def test_a_pod_seen_on_this_node_comes_before_one_that_is_not() -> None:
    book = a_book(a_grant(pod="a", token=1), a_grant(pod="b", token=2))
    seen = PodsSeen(bound=frozenset({PodUid("b")}))

    assert pods_of(candidates(book, (), 1, seen)) == ["b", "a"]


def test_of_pods_with_equal_grants_the_one_that_was_seen_first_comes_first() -> None:
    book = a_book(a_grant(pod="a", token=1), a_grant(pod="b", token=2), a_grant(pod="c", token=3))
    order = {PodUid("c"): 0, PodUid("a"): 1}
    seen = PodsSeen(bound=frozenset(order), order=order)

    assert pods_of(candidates(book, (), 1, seen)) == ["c", "a", "b"]


def test_a_pod_that_has_begun_is_finished_before_one_like_it_that_was_seen_earlier() -> None:
    both = (
        a_container(a_share(), name="one", index=0),
        a_container(a_share(), name="two", index=1),
    )
    first, second = a_grant(*both, pod="a", token=1), a_grant(*both, pod="b", token=2)
    book = a_book(first, second)
    order = {PodUid("b"): 0, PodUid("a"): 1}
    seen = PodsSeen(bound=frozenset(order), order=order)
    begun = a_record(first, "one", ids={ID_0})

    assert pods_of(candidates(book, [begun], 1, seen)) == ["a", "b"]


def test_of_pods_of_one_template_the_first_to_be_seen_comes_first_whatever_the_card() -> None:
    other = a_grant(a_container(a_share(CARD_B)), pod="b", token=2)
    book = a_book(a_grant(a_container(a_share(CARD_A)), pod="a", token=1), other)
    order = {PodUid("b"): 0, PodUid("a"): 1}
    seen = PodsSeen(bound=frozenset(order), order=order)

    assert pods_of(candidates(book, (), 1, seen)) == ["b", "a"]


def test_of_pods_with_other_grants_the_one_that_was_bound_first_comes_first() -> None:
    other = a_grant(a_container(a_share(CARD_B, 8192)), pod="b", token=2)
    book = a_book(a_grant(a_container(a_share(CARD_A)), pod="a", token=1), other)
    order = {PodUid("b"): 0, PodUid("a"): 1}
    seen = PodsSeen(bound=frozenset(order), order=order)

    assert pods_of(candidates(book, (), 1, seen)) == ["a", "b"]


def test_a_pod_that_is_over_is_not_meant() -> None:
    book = a_book(a_grant(pod="a"))

    assert candidates(book, (), 1, PodsSeen(ended=frozenset({PodUid("a")}))) == []


def test_a_pod_that_has_begun_is_finished_first() -> None:
    begun = a_grant(
        a_container(a_share(), name="one", index=0),
        a_container(a_share(), name="two", index=1),
        pod="begun",
        token=9,
    )
    book = a_book(begun, a_grant(pod="fresh", token=1))

    found = candidates(book, [a_record(begun, "one", ids={ID_0})], 1, NOBODY)

    assert pods_of(found) == ["begun", "fresh"]
    assert found[0].container.name == "two"


def test_init_containers_come_before_app_containers() -> None:
    grant = a_grant(
        a_container(a_share(), name="prepare", index=0, role="init"),
        a_container(a_share(), name="main", index=1),
    )

    [first] = candidates(a_book(grant), (), 1, NOBODY)

    assert first.container.name == "prepare"


def test_a_grant_that_has_all_its_answers_waits_for_nothing() -> None:
    grant = a_grant()

    assert candidates(a_book(grant), [a_record(grant, ids={ID_0})], 1, NOBODY) == []


def test_a_grant_whose_answers_were_lost_is_found_after_those_that_wait() -> None:
    lost = a_grant(pod="lost", token=1, state=AllocationState.ALLOCATED)
    waiting = a_grant(pod="waiting", token=2)

    assert pods_of(candidates(a_book(lost, waiting), (), 1, NOBODY)) == ["waiting", "lost"]


def test_a_grant_being_released_is_not_handed_out() -> None:
    book = a_book(a_grant(state=AllocationState.RELEASING))

    assert candidates(book, (), 1, NOBODY) == []


def two_containers(first_role: str = "app") -> tuple[Candidate, list[object]]:
    grant = a_grant(
        a_container(a_share(), name="one", index=0, role=first_role),
        a_container(a_share(), name="two", index=1),
    )
    record = a_record(grant, "one", ids={ID_0})
    return Candidate(grant=grant, container=grant.device_containers[1]), [record]


@pytest.mark.parametrize("first_role", ["app", "sidecar"])
def test_the_same_ids_for_a_second_container_that_stays_are_the_same_call_again(
    first_role: str,
) -> None:
    candidate, records = two_containers(first_role)

    assert repeated(records, frozenset({ID_0}), candidate) is records[0]
    assert repeated(records, frozenset({ID_1}), candidate) is None


def test_an_init_containers_ids_go_on_to_the_next_container() -> None:
    candidate, records = two_containers("init")

    assert repeated(records, frozenset({ID_0}), candidate) is None


def test_a_dead_pods_ids_go_on_to_the_next_pod() -> None:
    dead, fresh = a_grant(pod="dead"), a_grant(pod="fresh")
    candidate = Candidate(grant=fresh, container=fresh.device_containers[0])

    assert repeated([a_record(dead, ids={ID_0})], frozenset({ID_0}), candidate) is None


def test_a_grant_that_was_answered_before_it_was_made_waits_for_no_allocate() -> None:
    book = GrantBook().announced(replace(a_grant(), answered=True))

    assert candidates(book, [], 1, PodsSeen()) == []


def test_the_roomiest_cards_come_first_and_sick_ones_never() -> None:
    book = GrantBook().announced(a_grant(a_container(a_share(CARD_A, 50_000))))
    cards = {uuid: a_card(uuid) for uuid in (CARD_A, CARD_B)}

    assert roomiest(cards, book, 1) == [CARD_B]
    assert roomiest(cards, book, 2) == [CARD_B, CARD_A]
    cards[CARD_B] = replace(cards[CARD_B], healthy=False)
    assert roomiest(cards, book, 2) == [CARD_A]
