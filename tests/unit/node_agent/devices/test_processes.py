"""Shares of processes in a card's computing time, from NVML's answers."""

import pytest
from hami_node_agent.devices.processes import LONGEST_SAMPLE_US, BusySample, busy_shares

SECOND_US = 1_000_000
SINCE_US = 100 * SECOND_US
NOW_US = SINCE_US + 2 * SECOND_US


def shares(*samples: tuple[int, float, float]) -> dict[int, float]:
    """Return each process's percent and the second in which its newest sample ended."""
    return busy_shares(
        [
            BusySample(pid=pid, percent=percent, end_us=SINCE_US + int(end_s * SECOND_US))
            for pid, percent, end_s in samples
        ],
        since_us=SINCE_US,
        now_us=NOW_US,
    )[0]


def test_a_process_that_computes_all_the_time_has_its_percent() -> None:
    assert shares((7, 40, 2)) == {7: 40}


def test_one_that_has_stopped_counts_for_the_whole_time() -> None:
    assert shares((7, 80, 0.5), (8, 20, 2)) == {7: 20, 8: 20}


def test_whole_samples_of_one_process_add_up_to_the_cards_use() -> None:
    # Ten samples of 200 ms on a busy card: three count for one process, seven for the other.
    assert shares((7, 100 * 3 / 9, 1.8), (8, 70, 2)) == pytest.approx({7: 30, 8: 70})


def test_on_a_card_that_is_idle_now_an_old_sample_fades() -> None:
    since_us = NOW_US - 5 * SECOND_US
    old = BusySample(pid=7, percent=100, end_us=since_us + SECOND_US)
    found, seen_us = busy_shares([old], since_us=since_us, now_us=NOW_US)
    assert found == {7: 100 / (5 - LONGEST_SAMPLE_US / SECOND_US)}
    assert seen_us == old.end_us


def test_without_a_sample_nothing_is_new() -> None:
    assert busy_shares([], since_us=SINCE_US, now_us=NOW_US) == ({}, SINCE_US)


def test_a_figure_that_no_card_can_have_is_left_out() -> None:
    assert shares((7, 4_294_967_295, 2), (8, 10, 2)) == {8: 10}


def test_a_sample_that_was_seen_before_is_left_out() -> None:
    assert shares((7, 30, 0)) == {}
