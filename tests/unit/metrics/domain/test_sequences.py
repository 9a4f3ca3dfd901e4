"""Holes in the agents' numbering."""

from datetime import UTC, datetime, timedelta

from hami_metrics.domain.sequences import LOST_AFTER_S, MAX_HOLES, SequenceBook

NOW = datetime(2026, 11, 20, tzinfo=UTC)
LATER = NOW + timedelta(seconds=LOST_AFTER_S)


def book(*sequences: int, agent: str = "a1") -> SequenceBook:
    result = SequenceBook()
    for sequence in sequences:
        result.note("n1", agent, sequence, now=NOW)
    return result


def test_reports_in_order_miss_nothing() -> None:
    assert book(5, 6, 7).missing == 0


def test_a_skipped_report_is_missing_until_it_comes() -> None:
    reports = book(1, 4)
    assert reports.missing == 2

    reports.note("n1", "a1", 3, now=NOW)

    assert reports.missing == 1
    assert reports.lost == 0


def test_a_report_that_stays_away_is_lost_once() -> None:
    reports = book(1, 3)

    assert reports.give_up(now=LATER) == 1
    assert reports.give_up(now=LATER) == 0
    assert (reports.lost, reports.missing) == (1, 0)


def test_a_repeated_report_changes_nothing() -> None:
    reports = book(1, 2, 2, 1)

    assert (reports.lost, reports.missing) == (0, 0)


def test_a_restarted_agent_starts_over_and_what_the_old_one_owed_is_lost() -> None:
    reports = book(1, 3)

    reports.note("n1", "a2", 100, now=NOW)

    assert (reports.lost, reports.missing) == (1, 0)


def test_nodes_are_numbered_apart() -> None:
    reports = book(1)
    reports.note("n2", "a1", 9, now=NOW)

    assert reports.missing == 0


def test_a_huge_jump_is_bounded() -> None:
    reports = book(1, MAX_HOLES + 12)

    assert reports.missing == MAX_HOLES
    assert reports.lost == 10


def test_a_number_that_no_agent_counts_to_is_neither_a_loss_nor_the_end_of_the_count() -> None:
    reports = book(1, 2, 2**53 - 1)

    reports.note("n1", "a1", 3, now=NOW)
    reports.note("n1", "a1", 5, now=NOW)

    assert (reports.lost, reports.missing) == (0, 1)
