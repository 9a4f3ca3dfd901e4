from collections import Counter
from dataclasses import replace

import pytest
from hami_node_agent.grants.book import GrantBook
from hami_node_agent.grants.candidates import PodsSeen, candidates
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ownership import (
    Confirmed,
    Reassigned,
    RefusedHolding,
    Verdict,
    cards_for,
    displaced,
    others_astray,
    partners_of,
    record_of,
    verdict,
)
from hami_node_agent.grants.records import AgentState, Record
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, GpuUuid
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_container,
    a_foreign_holding,
    a_grant,
    a_holding,
    a_record,
    a_share,
)

IDS_A, IDS_B = {f"{CARD_A}-0"}, {f"{CARD_B}-0"}
POD_A = a_grant(a_container(a_share(CARD_A, 4096, 30)), pod="a", token=1)
POD_B = a_grant(a_container(a_share(CARD_B, 8192, 50)), pod="b", token=2)
MEANT_FOR_A = a_record(POD_A, ids=IDS_A, nonce="nonce-a")
MEANT_FOR_B = a_record(POD_B, ids=IDS_B, nonce="nonce-b")


def decide(
    holding: Holding,
    *records: Record,
    book: GrantBook | None = None,
) -> Verdict:
    return verdict(holding, records=records, book=a_book(POD_A, POD_B) if book is None else book)


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_the_owner_starts_with_its_own_limits(with_checkpoint: bool) -> None:
    known = MEANT_FOR_A if with_checkpoint else None

    found = decide(a_holding("a", ids=IDS_A, record=known), MEANT_FOR_A, MEANT_FOR_B)

    assert found == Confirmed(record=MEANT_FOR_A)


def test_an_owner_known_by_its_record_starts_while_no_grant_is_known() -> None:
    found = decide(a_holding("a", ids=IDS_A), MEANT_FOR_A, book=GrantBook())

    assert found == Confirmed(record=MEANT_FOR_A)


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_two_pods_that_were_admitted_in_the_other_order_get_their_own_amounts(
    with_checkpoint: bool,
) -> None:
    b_has_as_answer = a_holding("b", ids=IDS_A, record=MEANT_FOR_A if with_checkpoint else None)

    found = decide(b_has_as_answer, MEANT_FOR_A, MEANT_FOR_B)

    assert isinstance(found, Reassigned)
    assert found.moved
    assert found.after.nonce == "nonce-a"
    assert found.after.belongs_to("b", "main")
    assert found.after.shares == (a_share(CARD_A, 8192, 50),)


def test_a_swap_on_one_card_moves_nothing() -> None:
    pod_b = a_grant(a_container(a_share(CARD_A, 8192, 50)), pod="b", token=2)

    found = decide(a_holding("b", ids=IDS_A), MEANT_FOR_A, book=a_book(POD_A, pod_b))

    assert isinstance(found, Reassigned)
    assert not found.moved
    assert found.after.shares == (a_share(CARD_A, 8192, 50),)


def test_a_pod_without_a_grant_does_not_start() -> None:
    found = decide(a_holding("unscheduled", ids=IDS_A), MEANT_FOR_A)

    assert isinstance(found, RefusedHolding)
    assert found.grant is None
    assert "without a grant" in found.reason


def test_a_grant_for_another_number_of_cards_is_not_squeezed_in() -> None:
    pod_b = a_grant(a_container(a_share(CARD_A), a_share(CARD_B)), pod="b", token=2)

    found = decide(a_holding("b", ids=IDS_A), MEANT_FOR_A, book=a_book(POD_A, pod_b))

    assert isinstance(found, RefusedHolding)
    assert found.grant == pod_b
    assert "gave container main 1 cards and its grant has 2" in found.reason


def swapped(*names: str) -> tuple[tuple[Holding, ...], tuple[Record, ...], GrantBook]:
    """Pods of one card each; everyone holds the answer that was meant for the next, the last that
    of the first."""
    cards = [f"GPU-of-{name}" for name in names]
    grants = [
        a_grant(a_container(a_share(card, 100 * number)), pod=name, token=number)
        for number, (name, card) in enumerate(zip(names, cards, strict=True), start=1)
    ]
    records = tuple(
        a_record(grant, ids={f"{card}-0"}, nonce=f"nonce-{grant.pod_uid}")
        for grant, card in zip(grants, cards, strict=True)
    )
    holdings = tuple(
        a_holding(name, ids=set(record.device_ids), record=record)
        for name, record in zip(names, (*records[1:], records[0]), strict=True)
    )
    return holdings, records, a_book(*grants)


def partners(
    holdings: tuple[Holding, ...], records: tuple[Record, ...], book: GrantBook
) -> list[str]:
    """Of the first."""
    owner = verdict(holdings[0], records=records, book=book)
    assert isinstance(owner, Reassigned)
    astray = others_astray(owner, records=records, holdings=holdings, book=book)
    found = partners_of(owner, astray)
    return [change.after.pod_uid for change in found]


def test_the_partner_of_a_swap_is_who_leaves_the_card() -> None:
    assert partners(*swapped("a", "b")) == ["b"]


def test_a_ring_of_swaps_is_moved_together() -> None:
    assert partners(*swapped("a", "b", "c", "d")) == ["b", "c", "d"]


def test_who_holds_his_own_answer_or_other_cards_altogether_is_no_partner() -> None:
    holdings, records, book = swapped("a", "b")
    own = a_grant(a_container(a_share("GPU-of-b", 7)), pod="own", token=10)
    kept = a_record(own, ids={"GPU-of-b-5"}, nonce="nonce-own")
    far, far_records, far_book = swapped("x", "y")
    for grant in (own, *far_book.grants.values()):
        book = book.announced(replace(grant, token=grant.token + 20))
    holdings = (*holdings, a_holding("own", ids={"GPU-of-b-5"}, record=kept), *far)

    assert partners(holdings, (*records, kept, *far_records), book) == ["b"]


def test_a_partner_that_the_kubelet_has_not_admitted_yet_is_not_known() -> None:
    holdings, records, book = swapped("a", "b")

    assert partners(holdings[:1], records, book) == []


@given(cards=st.lists(st.sampled_from("ABC"), max_size=5), data=st.data())
def test_every_slice_gets_one_card_of_the_answer_and_its_own_where_that_is_there(
    cards: list[str], data: st.DataObject
) -> None:
    granted = data.draw(st.lists(st.sampled_from("ABCD"), min_size=len(cards), max_size=len(cards)))
    shares = [a_share(card, number) for number, card in enumerate(granted)]

    given_ = cards_for(shares, [GpuUuid(card) for card in cards])

    assert sorted(given_) == sorted(cards)
    stay = sum(a == b for a, b in zip(granted, given_, strict=True))
    assert stay == sum((Counter(granted) & Counter(cards)).values())


def test_an_answer_that_the_state_lost_is_rebuilt_from_the_checkpoint() -> None:
    held = a_holding("a", ids=IDS_A, record=MEANT_FOR_A)
    allocated = replace(POD_A, state=AllocationState.ALLOCATED)

    found = decide(held, book=a_book(allocated))

    assert isinstance(found, Reassigned)
    assert not found.moved
    assert found.after == MEANT_FOR_A


def test_an_answer_that_nobody_knows_is_not_started_upon() -> None:
    found = decide(a_holding("a", ids=IDS_A))

    assert isinstance(found, RefusedHolding)
    assert "does not know the answer" in found.reason


def test_an_answer_that_an_unscheduled_pod_took_is_nobodys_until_it_has_a_grant() -> None:
    lost = MEANT_FOR_A.lost_to("b", "main", namespace="default", pod_name="pod-b")

    assert lost.allocation_id == AllocationId("")
    assert isinstance(decide(a_holding("b", ids=IDS_A), lost, book=a_book(POD_A)), RefusedHolding)
    assert isinstance(decide(a_holding("b", ids=IDS_A), lost), Reassigned)


def test_an_answer_of_an_attempt_that_failed_is_written_again_for_the_bound_one() -> None:
    bound = replace(POD_A, allocation_id=AllocationId("second attempt"), token=7)

    found = decide(a_holding("a", ids=IDS_A), MEANT_FOR_A, book=a_book(bound))

    assert isinstance(found, Reassigned)
    assert (found.after.allocation_id, found.after.token) == ("second attempt", 7)


def test_init_and_app_container_with_the_same_ids_are_distinguished_by_their_answers() -> None:
    grant = a_grant(
        a_container(a_share(CARD_A, 1024), name="prepare", role="init"),
        a_container(a_share(CARD_A, 4096), name="main", index=1),
        pod="a",
    )
    init = a_record(grant, "prepare", ids=IDS_A, nonce="i")
    app = a_record(grant, "main", ids=IDS_A, nonce="m")

    for record in (init, app):
        held = a_holding("a", record.container, ids=IDS_A, record=record)
        assert decide(held, init, app, book=a_book(grant)) == Confirmed(record=record)
    assert decide(a_holding("a", "main", ids=IDS_A), init, app) == Confirmed(record=app)


def test_slices_stay_on_their_own_cards_where_the_answer_has_them() -> None:
    big, small = a_share(CARD_B, 9000, 60), a_share(CARD_A, 1000, 10)
    owner = a_grant(a_container(big, small), pod="b", token=2)
    other = a_grant(a_container(a_share(CARD_A, 5, 5), a_share(CARD_B, 5, 5)), pod="a")
    record = a_record(other, ids=IDS_A | IDS_B)

    found = decide(a_holding("b", ids=IDS_A | IDS_B), record, book=a_book(owner, other))

    assert isinstance(found, Reassigned)
    assert found.after.shares == (small, big)
    assert not found.moved


def test_hamis_answer_is_never_taken_for_an_old_one_of_ours_with_the_same_ids() -> None:
    ours = a_record(a_grant(), ids={f"{CARD_B}-0"})

    assert record_of(a_foreign_holding(), [ours]) is None
    found = verdict(a_foreign_holding(), records=[ours], book=GrantBook())
    assert isinstance(found, RefusedHolding)
    assert "hamictl adopt" in found.reason


@given(st.permutations(range(5)), st.permutations(range(5)), st.booleans())
def test_while_answers_are_exchanged_nobody_looks_as_if_it_had_none(
    taken: list[int], starts: list[int], with_checkpoint: bool
) -> None:
    """The next Allocate, of another pod, would be given a second answer for it."""
    grants = [
        a_grant(a_container(a_share(CARD_A, 4096, 30)), pod=f"pod-{n}", token=n) for n in range(5)
    ]
    answers = [
        a_record(grant, ids={f"{CARD_A}-{n}"}, nonce=f"nonce-{n}") for n, grant in enumerate(grants)
    ]
    book, state = a_book(*grants), AgentState().with_records(answers)

    for n in starts:
        answer = answers[taken[n]]
        held = a_holding(
            f"pod-{n}", ids=set(answer.device_ids), record=answer if with_checkpoint else None
        )
        found = decide(held, *state.records.values(), book=book)
        if isinstance(found, Reassigned):
            state = state.with_records([found.after, *displaced(found, state.records)])
        assert candidates(book, state.records.values(), 1, PodsSeen()) == []

    for n in range(5):
        assert state.records[f"nonce-{taken[n]}"].belongs_to(f"pod-{n}", "main")
