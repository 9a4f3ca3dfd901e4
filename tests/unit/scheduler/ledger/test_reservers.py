"""Which replicas reserve."""

from __future__ import annotations

from hami_scheduler.ledger.reservations.reservers import KNOWN_S, STANDS_BY_S, Reservers
from hamicommon.domain.ids import AllocationId

OWN, ANOTHERS = AllocationId("own"), AllocationId("another's")


def test_a_replica_stands_by_while_another_one_alone_reserves() -> None:
    now_s = 0.0
    reservers = Reservers(lambda: now_s)
    assert not reservers.stands_by()

    reservers.note(ANOTHERS)
    assert reservers.others()
    assert reservers.stands_by()

    now_s = KNOWN_S
    assert not reservers.others()
    assert reservers.stands_by()
    now_s = STANDS_BY_S
    assert not reservers.stands_by()


def test_one_that_reserves_too_does_not_nor_do_its_own_events_count() -> None:
    now_s = 0.0
    reservers = Reservers(lambda: now_s)
    reservers.note_own(OWN)
    reservers.note(OWN)
    assert not reservers.others()

    reservers.note(ANOTHERS)
    assert not reservers.stands_by()

    now_s = KNOWN_S - 1
    reservers.note(ANOTHERS)
    now_s = KNOWN_S
    assert reservers.stands_by()
