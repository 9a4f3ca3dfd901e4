import pytest
from hami_node_agent.devices.health import (
    BAD_PROBES,
    GOOD_PROBES,
    Failure,
    Health,
    after_bad_probe,
    after_good_probe,
    after_xid,
    xid_policy,
)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_application_errors_are_not_the_cards_fault(xid: int) -> None:
    assert not xid_policy(()).matters(xid)


@pytest.mark.parametrize(
    ("entries", "xid", "matters"),
    [
        ([], 79, True),
        (["-79"], 79, False),
        (["-xids"], 79, False),
        (["-ALL"], 79, False),
        (["-all", "79"], 79, True),
        (["31"], 31, True),
        (["-79", "all"], 79, True),
        (["-x", "-", "-79junk"], 79, True),
    ],
)
def test_enabling_wins_over_disabling(entries: list[str], xid: int, matters: bool) -> None:
    assert xid_policy(entries).matters(xid) is matters


LOST = Failure(reason="GPU is lost", certain=True)
LATE = Failure(reason="no answer", certain=False)


@pytest.mark.parametrize(
    ("entries", "listens"),
    [
        ([], True),
        (["-all"], False),
        (["-xids", "79"], True),
        (["-all", "all"], True),
        (["-79"], True),
    ],
)
def test_events_are_listened_for_while_any_matters(entries: list[str], listens: bool) -> None:
    assert xid_policy(entries).any_matters is listens


def test_a_card_that_was_late_once_is_not_sick() -> None:
    health = Health()
    for _ in range(BAD_PROBES - 1):
        health = after_bad_probe(health, LATE)
        assert health.healthy

    assert not after_bad_probe(health, LATE).healthy
    assert after_good_probe(health, now=0.0) == Health()


def test_a_card_is_well_again_after_enough_good_probes() -> None:
    health = after_bad_probe(Health(), LOST)
    assert (health.healthy, health.reason) == (False, "GPU is lost")

    seen = []
    for _ in range(GOOD_PROBES):
        health = after_good_probe(health, now=0.0)
        seen.append(health.healthy)

    assert seen == [False] * (GOOD_PROBES - 1) + [True]
    assert health == Health()


def test_a_bad_probe_in_between_restarts_the_count() -> None:
    health = after_bad_probe(Health(), LOST)
    for _ in range(GOOD_PROBES - 1):
        health = after_good_probe(health, now=0.0)

    health = after_good_probe(after_bad_probe(health, LATE), now=0.0)

    assert not health.healthy


def test_an_xid_keeps_a_card_sick_until_it_has_been_quiet() -> None:
    health = after_xid(Health(), 79, now=100.0, quiet_s=300.0)
    assert health.reason == "XID 79"

    assert not after_good_probe(health, now=399.0).healthy
    assert after_good_probe(health, now=400.0).healthy
