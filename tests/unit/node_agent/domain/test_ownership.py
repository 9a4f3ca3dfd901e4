from dataclasses import replace

import pytest
from hami_node_agent.domain.grants import GrantBook
from hami_node_agent.domain.ownership import (
    Confirmed,
    ForeignAnswer,
    Holding,
    Reassigned,
    Refused,
    Verdict,
    foreign_records,
    record_of,
    verdict,
)
from hami_node_agent.domain.records import Record
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId

from tests.unit.node_agent.builders import (
    CARD_A,
    CARD_B,
    a_book,
    a_card,
    a_container,
    a_grant,
    a_holding,
    a_record,
    a_share,
)

CARDS = (a_card(CARD_A), a_card(CARD_B, index=1))
IDS_A, IDS_B = {f"{CARD_A}-0"}, {f"{CARD_B}-0"}
POD_A = a_grant(a_container(a_share(CARD_A, 4096, 30)), pod="a", token=1)
POD_B = a_grant(a_container(a_share(CARD_B, 8192, 50)), pod="b", token=2)
MEANT_FOR_A = a_record(POD_A, ids=IDS_A, nonce="nonce-a")
MEANT_FOR_B = a_record(POD_B, ids=IDS_B, nonce="nonce-b")


def decide(
    holding: Holding,
    *records: Record,
    book: GrantBook | None = None,
    cards: tuple[GpuDevice, ...] = CARDS,
    others: tuple[Holding, ...] = (),
) -> Verdict:
    return verdict(
        holding,
        records=records,
        holdings=(holding, *others),
        book=a_book(POD_A, POD_B) if book is None else book,
        cards={card.uuid: card for card in cards},
    )


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
    known_a, known_b = (MEANT_FOR_A, MEANT_FOR_B) if with_checkpoint else (None, None)
    b_has_as_answer = a_holding("b", ids=IDS_A, record=known_a)
    a_has_bs_answer = a_holding("a", ids=IDS_B, record=known_b)

    found = decide(b_has_as_answer, MEANT_FOR_A, MEANT_FOR_B, others=(a_has_bs_answer,))

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
    found = decide(a_holding("stranger", ids=IDS_A), MEANT_FOR_A)

    assert isinstance(found, Refused)
    assert found.grant is None
    assert "without a grant" in found.reason


def test_a_grant_for_another_number_of_cards_is_not_squeezed_in() -> None:
    pod_b = a_grant(a_container(a_share(CARD_A), a_share(CARD_B)), pod="b", token=2)

    found = decide(a_holding("b", ids=IDS_A), MEANT_FOR_A, book=a_book(POD_A, pod_b))

    assert isinstance(found, Refused)
    assert found.grant == pod_b
    assert "gave container main 1 cards and its grant has 2" in found.reason


@pytest.mark.parametrize(
    ("short", "word"),
    [
        ({"memory_mib": 12287}, "12287 MiB"),
        ({"core_percent": 79}, "of 79 percent"),
        ({"slots": 1}, "of 1 slots"),
    ],
    ids=["memory", "cores", "slots"],
)
def test_a_card_without_room_for_both_refuses_the_newcomer(
    short: dict[str, int], word: str
) -> None:
    # Pod a is still on card A by its grant, and nobody has shown that it is elsewhere.
    cards = (a_card(CARD_A, **short), a_card(CARD_B))

    found = decide(a_holding("b", ids=IDS_A), MEANT_FOR_A, cards=cards)

    assert isinstance(found, Refused)
    assert word in found.reason


def test_a_card_that_the_other_pod_has_left_has_room() -> None:
    cards = (a_card(CARD_A, memory_mib=8192), a_card(CARD_B, memory_mib=8192))
    a_has_bs_answer = a_holding("a", ids=IDS_B, record=MEANT_FOR_B)

    found = decide(
        a_holding("b", ids=IDS_A, record=MEANT_FOR_A),
        MEANT_FOR_A,
        MEANT_FOR_B,
        cards=cards,
        others=(a_has_bs_answer,),
    )

    assert isinstance(found, Reassigned)


def test_nobody_is_put_onto_a_card_that_somebody_has_alone() -> None:
    alone = a_grant(a_container(a_share(CARD_A, 4096, 100)), pod="a", token=1)
    no_cores = a_grant(a_container(a_share(CARD_B, 8192, 0)), pod="b", token=2)
    record = a_record(alone, ids=IDS_A)

    found = decide(a_holding("b", ids=IDS_A), record, book=a_book(alone, no_cores))

    assert isinstance(found, Refused)
    assert "all cores" in found.reason


def test_an_answer_that_the_state_lost_is_rebuilt_from_the_checkpoint() -> None:
    held = a_holding("a", ids=IDS_A, record=MEANT_FOR_A)
    allocated = replace(POD_A, state=AllocationState.ALLOCATED)

    found = decide(held, book=a_book(allocated))

    assert isinstance(found, Reassigned)
    assert not found.moved
    assert found.after == MEANT_FOR_A


def test_an_answer_that_nobody_knows_is_not_started_upon() -> None:
    found = decide(a_holding("a", ids=IDS_A))

    assert isinstance(found, Refused)
    assert "does not know the answer" in found.reason


def test_an_answer_that_a_stranger_took_is_nobodys_until_he_has_a_grant() -> None:
    lost = MEANT_FOR_A.lost_to("b", "main", namespace="default", pod_name="pod-b")

    assert lost.allocation_id == AllocationId("")
    assert isinstance(decide(a_holding("b", ids=IDS_A), lost, book=a_book(POD_A)), Refused)
    assert isinstance(decide(a_holding("b", ids=IDS_A), lost), Reassigned)


def test_an_answer_of_an_attempt_that_failed_is_written_anew_for_the_bound_one() -> None:
    bound = replace(POD_A, allocation_id=AllocationId("second attempt"), token=7)

    found = decide(a_holding("a", ids=IDS_A), MEANT_FOR_A, book=a_book(bound))

    assert isinstance(found, Reassigned)
    assert (found.after.allocation_id, found.after.token) == ("second attempt", 7)


def test_init_and_app_container_with_the_same_ids_are_told_apart_by_their_answers() -> None:
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


def hamis(pod: str = "pod-1", *cards: str) -> Holding:
    return Holding(
        pod_uid=pod,
        container="main",
        device_ids=frozenset({f"{CARD_B}-0"}),
        foreign=ForeignAnswer(
            visible=cards or (CARD_A,), memory_mib=(4096,), core_percent=30, cache_dir="x_main"
        ),
    )


def test_an_adopted_answer_gets_a_record_once() -> None:
    book = GrantBook().announced(replace(a_grant(), answered=True))

    [record] = foreign_records(book, [hamis()], [])

    assert record.foreign
    assert (record.pod_uid, record.container, record.cache_dir) == ("pod-1", "main", "x_main")
    assert record.cards == (CARD_A,)
    assert foreign_records(book, [hamis()], [record]) == []
    assert record_of(hamis(), [record]) == record


@pytest.mark.parametrize(
    ("answered", "holding"),
    [
        pytest.param(False, hamis(), id="a grant of ours, whose Allocate will come"),
        pytest.param(True, hamis("pod-2"), id="a pod without a grant"),
        pytest.param(True, hamis("pod-1", CARD_B), id="another card than adopted"),
    ],
)
def test_nothing_else_gets_one(answered: bool, holding: Holding) -> None:
    book = GrantBook().announced(replace(a_grant(), answered=answered))

    assert foreign_records(book, [holding], []) == []


def test_hamis_answer_is_never_taken_for_an_old_one_of_ours_with_the_same_ids() -> None:
    ours = a_record(a_grant(), ids={f"{CARD_B}-0"})

    assert record_of(hamis(), [ours]) is None
    found = verdict(hamis(), records=[ours], holdings=[], book=GrantBook(), cards={})
    assert isinstance(found, Refused)
    assert "hamictl adopt" in found.reason
