"""The grant in flight: between its binding and the answers to its containers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.records import AgentState, PodsSeen, Record, find_in_flight
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, PodUid

from tests.unit.node_agent.builders import a_book, a_container, a_grant, a_record, a_share

IDS = {"GPU-0"}
TWO = (a_container(a_share(), name="one", index=0), a_container(a_share(), name="two", index=1))


def found(
    *grants: NodeGrant, records: tuple[Record, ...] = (), ended: str = "", bound: str = ""
) -> tuple[str, str]:
    """Pod and container; empty: none is in flight."""
    saved = AgentState().with_records(records)
    seen = PodsSeen(ended=frozenset(map(PodUid, ended)), bound=frozenset(map(PodUid, bound)))
    each = find_in_flight(a_book(*grants), saved, seen)
    return ("", "") if each is None else (each.grant.pod_uid, each.container.name)


def test_a_bound_pod_waits_for_its_first_container() -> None:
    assert found(a_grant(*TWO, pod="a")) == ("a", "one")


def test_init_containers_come_before_app_containers() -> None:
    grant = a_grant(
        a_container(a_share(), name="prepare", index=0, role="init"),
        a_container(a_share(), name="main", index=1),
        pod="a",
    )

    assert found(grant) == ("a", "prepare")


def test_a_container_without_cards_is_left_out() -> None:
    grant = a_grant(a_container(name="none", index=0), a_container(a_share(), index=1), pod="a")

    assert found(grant) == ("a", "main")


def test_a_grant_that_has_all_its_answers_waits_for_nothing() -> None:
    grant = a_grant(*TWO, pod="a")
    one = a_record(grant, "one", ids=IDS, nonce="1")
    two = a_record(grant, "two", ids=IDS, nonce="2")

    assert found(grant, records=(one,)) == ("a", "two")
    assert found(grant, records=(one, two)) == ("", "")


def test_an_answer_of_an_attempt_that_failed_is_none_of_the_next_attempts() -> None:
    grant = a_grant(pod="a")
    failed = replace(a_record(grant, ids=IDS), allocation_id=AllocationId("failed attempt"))

    assert found(grant, records=(failed,)) == ("a", "main")


@pytest.mark.parametrize("state", [AllocationState.ALLOCATED, AllocationState.RELEASING])
def test_a_grant_that_was_answered_or_is_given_back_waits_for_nothing(
    state: AllocationState,
) -> None:
    assert found(a_grant(pod="a", state=state)) == ("", "")


def test_a_grant_that_still_waits_for_the_node_lock_is_not_in_flight() -> None:
    """The ledger lists it; another pod, whose answer is gone, must not get this one's."""
    assert found(replace(a_grant(pod="a"), offered=False)) == ("", "")


def test_a_grant_that_was_answered_before_it_was_made_waits_for_no_allocate() -> None:
    assert found(replace(a_grant(pod="a"), answered=True)) == ("", "")


def test_a_grant_whose_pod_is_on_the_node_is_in_flight_though_no_offer_is_remembered() -> None:
    listed = replace(a_grant(pod="a", state=AllocationState.BINDING), offered=False)

    assert found(listed) == ("", "")
    assert found(listed, bound="a") == ("a", "main")


def test_a_pod_that_is_over_waits_for_nothing() -> None:
    assert found(a_grant(pod="a"), ended="a") == ("", "")


def test_without_the_lock_the_pod_that_was_bound_first_is_taken() -> None:
    assert found(a_grant(pod="a", token=7), a_grant(pod="b", token=5)) == ("b", "main")


def test_a_pod_that_has_begun_is_finished_first() -> None:
    begun = a_grant(*TWO, pod="begun", token=9)
    one = a_record(begun, "one", ids=IDS)

    assert found(begun, a_grant(pod="fresh", token=1), records=(one,)) == ("begun", "two")
