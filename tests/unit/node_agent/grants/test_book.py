import itertools
from dataclasses import replace

import pytest
from hami_node_agent.grants.book import OVERTAKEN_S, GrantBook, NodeGrant
from hamicommon.domain.allocations import AllocationState
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.node_agent.builders import a_book, a_container, a_grant, a_share


def test_a_lower_token_never_replaces_a_higher_one() -> None:
    new, old = a_grant(token=2), a_grant(token=1)

    assert a_book(new, old).of("pod-1") == new
    assert a_book(old, new).of("pod-1") == new


def test_a_withdrawn_grant_does_not_come_back() -> None:
    grant = a_grant(token=3)

    book = (
        GrantBook().without(grant.allocation_id, grant.pod_uid, 3, heard_at=1.0).with_grant(grant)
    )

    assert book.of("pod-1") is None


def test_a_snapshot_that_a_withdrawal_overtook_brings_nothing_back() -> None:
    grant = a_grant(token=3)
    book = a_book(grant).without(grant.allocation_id, grant.pod_uid, 3, heard_at=1.0)

    assert book.reset_to([grant], complete=True, asked_at=2.0).of("pod-1") is None


def test_a_grant_that_the_ledger_has_again_lives() -> None:
    grant = a_grant(token=3)
    book = a_book(grant).without(grant.allocation_id, grant.pod_uid, 3, heard_at=1.0)

    later = book.reset_to([grant], complete=True, asked_at=1.0 + OVERTAKEN_S)

    assert later.of("pod-1") == grant


def test_withdrawing_an_old_attempt_keeps_the_new_one() -> None:
    new = a_grant(token=4)

    book = a_book(new).without(new.allocation_id, new.pod_uid, 3, heard_at=1.0)

    assert book.of("pod-1") == new


def test_a_complete_snapshot_drops_what_it_does_not_hold() -> None:
    book = a_book(a_grant(heard_at=1.0))

    assert book.reset_to([], complete=True, asked_at=2.0).of("pod-1") is None


def test_what_was_heard_after_the_question_survives_the_answer() -> None:
    book = a_book(a_grant(heard_at=3.0))

    assert book.reset_to([], complete=True, asked_at=2.0).of("pod-1") is not None


def test_an_incomplete_snapshot_only_adds() -> None:
    book = a_book(a_grant(pod="a"))

    after = book.reset_to([a_grant(pod="b")], complete=False, asked_at=9.0)

    assert set(after.grants) == {"a", "b"}


def test_the_snapshot_brings_the_state_of_a_grant_with_the_same_token() -> None:
    book = a_book(a_grant(heard_at=3.0))
    listed = a_grant(state=AllocationState.ALLOCATED)

    after = book.reset_to([listed], complete=True, asked_at=2.0).of("pod-1")

    assert after is not None
    assert after.state is AllocationState.ALLOCATED


def test_containers_without_cards_are_not_waited_for_and_order_is_that_of_the_spec() -> None:
    grant = a_grant(
        a_container(a_share(), name="last", index=2),
        a_container(name="none", index=1),
        a_container(a_share(), name="first", index=0, role="init"),
    )

    assert [container.name for container in grant.device_containers] == ["first", "last"]


Message = tuple[str, int]


@settings(max_examples=60)
@given(
    st.permutations([("grant", 1), ("withdraw", 1), ("grant", 2), ("grant", 3), ("withdraw", 3)])
)
def test_the_end_does_not_depend_on_the_order_of_messages(order: list[Message]) -> None:
    assert _after(order).of("pod-1") is None


@pytest.mark.parametrize(
    "order", list(itertools.permutations([("grant", 1), ("withdraw", 1), ("grant", 2)]))
)
def test_the_newest_grant_remains(order: tuple[Message, ...]) -> None:
    found = _after(list(order)).of("pod-1")

    assert found is not None
    assert found.token == 2


def _after(messages: list[Message]) -> GrantBook:
    book = GrantBook()
    for kind, token in messages:
        grant: NodeGrant = a_grant(token=token)
        if kind == "grant":
            book = book.with_grant(grant)
        else:
            book = book.without(grant.allocation_id, grant.pod_uid, token, heard_at=1.0)
    return book


def test_a_snapshot_does_not_take_back_that_a_grant_was_offered() -> None:
    offered = a_grant()
    listed = replace(offered, offered=False)

    book = a_book(offered).reset_to([listed], complete=True, asked_at=1.0)
    other = GrantBook().reset_to([listed], complete=True, asked_at=1.0)

    assert book.grants["pod-1"].offered
    assert not other.grants["pod-1"].offered


def test_a_grant_that_was_listed_before_it_was_offered_is_offered_then() -> None:
    offered = a_grant()

    book = GrantBook().reset_to([replace(offered, offered=False)], complete=True, asked_at=1.0)

    assert book.with_grant(offered).grants["pod-1"].offered
