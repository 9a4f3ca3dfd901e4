"""Each constraint has a name, and each name an error of the domain with a sentence."""

from collections.abc import AsyncIterator

import pytest
from hamicommon.errors import CapacityConflict, Conflict, HamiError, InvalidRequest
from hamicommon.ledger.constraints import MEANINGS, ConstraintViolation
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.tables.columns import (
    EVENTS_GAP_FREE,
    ONE_GRANT_AT_A_TIME,
    ONE_LIVE_PER_POD,
    VERSION_GROWS,
)
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.servers import psql

ID = "00000000-0000-4000-8000-{:012}"


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as opened:
        await opened.fetch("INSERT INTO nodes (name) VALUES ('n')")
        await opened.fetch(
            "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
            " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)"
            " VALUES ('GPU-1', 'n', 'NVIDIA', 0, 'A100', 2, 1000, 100, 2, 1000, 100, true)"
        )
        yield opened


def allocation(number: int, pod: str, attempt: int, reserved: str, ended: str | None) -> str:
    """An INSERT; times are of one hour, given as minutes."""
    state = "reserved" if ended is None else "released"
    until = "NULL" if ended is None else f"'2026-01-01 00:{ended}+00'"
    return (
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        f" reserved_at, ended_at) VALUES ('{ID.format(number)}', '{pod}', 'ns', 'p', {attempt},"
        f" 'n', '{state}', '2026-01-01 00:{reserved}+00', {until})"
    )


def test_every_constraint_of_the_catalogue_has_a_meaning_and_none_is_left(
    postgres_dsn: str,
) -> None:
    """Primary keys need none: all of theirs mean that the row exists already."""
    names = psql(
        postgres_dsn,
        "SELECT DISTINCT conname FROM pg_constraint WHERE contype IN ('c', 'f', 'u', 'x')"
        " AND connamespace = 'public'::regnamespace AND conparentid = 0"
        " AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = conrelid)",
    ).splitlines()

    assert set(MEANINGS) == {*names, ONE_LIVE_PER_POD, EVENTS_GAP_FREE, VERSION_GROWS}


@pytest.mark.parametrize(
    ("column", "amount"), [("slots", 3), ("memory_mib", 1001), ("core_percent", 101)]
)
async def test_a_card_that_would_give_more_than_it_has_is_named(
    database: Database, column: str, amount: int
) -> None:
    with pytest.raises(CapacityConflict, match="can't hold it") as refused:
        await database.fetch(f"UPDATE devices SET used_{column} = {amount}")

    assert refused.value.subject == "GPU-1"


async def test_a_second_live_grant_of_a_pod_is_refused_by_name(database: Database) -> None:
    await database.fetch(allocation(1, "pod", 1, "10", None))

    with pytest.raises(ConstraintViolation, match="live grant already") as refused:
        await database.fetch(allocation(2, "pod", 2, "20", None))

    assert refused.value.constraint == ONE_LIVE_PER_POD


@pytest.mark.parametrize(
    ("reserved", "ended"),
    [("15", "18"), ("05", "11"), ("19", "30"), ("05", "30"), ("15", None)],
    ids=["within", "into", "out of", "around", "live"],
)
async def test_periods_of_a_pods_grants_never_overlap(
    database: Database, reserved: str, ended: str | None
) -> None:
    await database.fetch(allocation(1, "pod", 1, "10", "20"))

    with pytest.raises(ConstraintViolation, match="another grant at that time") as refused:
        await database.fetch(allocation(2, "pod", 2, reserved, ended))

    assert refused.value.constraint == ONE_GRANT_AT_A_TIME


@pytest.mark.parametrize(
    ("pod", "reserved", "ended"),
    [("pod", "20", None), ("pod", "05", "10"), ("pod-2", "15", None), ("po", "15", None)],
    ids=["right after", "right before", "of another pod", "of a pod whose name starts alike"],
)
async def test_periods_that_only_touch_are_apart(
    database: Database, pod: str, reserved: str, ended: str | None
) -> None:
    await database.fetch(allocation(1, "pod", 1, "10", "20"))

    await database.fetch(allocation(2, pod, 2, reserved, ended))

    assert len(await database.fetch("SELECT FROM allocations")) == 2


async def test_a_clock_that_was_set_back_makes_an_empty_period_not_an_error(
    database: Database,
) -> None:
    await database.fetch(allocation(1, "pod", 1, "20", "10"))

    [row] = await database.fetch(
        "SELECT isempty(hami_held(reserved_at, ended_at)) FROM allocations"
    )
    assert row[0]


@pytest.mark.parametrize("previous", [None, "binding"])
async def test_an_event_that_does_not_go_on_from_the_last_one_is_refused(
    database: Database, previous: str | None
) -> None:
    await database.fetch(allocation(1, "pod", 1, "10", None))
    insert = (
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state)"
        " VALUES ('pod', $1, $2, $3, $4)"
    )
    await database.fetch(insert, 1, ID.format(1), None, "reserved")

    with pytest.raises(Conflict, match="does not follow"):
        await database.fetch(insert, 2, ID.format(1), previous, "bound")

    await database.fetch(insert, 2, ID.format(1), "reserved", "bound")


async def test_a_step_of_a_grant_is_refused_in_the_history_of_another_pod(
    database: Database,
) -> None:
    """A row whose pod was changed by hand takes no step until the reconciler has put it right."""
    await database.fetch(allocation(1, "pod", 1, "10", None))
    await database.fetch(allocation(2, "gone", 1, "10", "20"))
    insert = (
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state)"
        " VALUES ($1, $2, $3, $4, $5)"
    )
    await database.fetch(insert, "pod", 1, ID.format(1), None, "allocated")
    await database.fetch(insert, "gone", 1, ID.format(2), None, "allocated")

    for pod, sequence in (("garbage", 1), ("gone", 2)):
        with pytest.raises(Conflict, match="does not follow"):
            await database.fetch(insert, pod, sequence, ID.format(1), "allocated", "released")

    await database.fetch(insert, "pod", 2, ID.format(1), "allocated", "released")


@pytest.mark.parametrize("sequence", [3, 0, -1])
async def test_an_event_that_leaves_a_gap_is_refused(database: Database, sequence: int) -> None:
    await database.fetch(allocation(1, "pod", 1, "10", None))
    insert = (
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)"
        " VALUES ('pod', $1, $2, 'reserved')"
    )
    await database.fetch(insert, 1, ID.format(1))

    with pytest.raises(Conflict, match="does not follow"):
        await database.fetch(insert, sequence, ID.format(1))


@pytest.mark.parametrize(
    ("statement", "error", "sentence"),
    [
        ("UPDATE nodes SET source = 'hearsay'", InvalidRequest, "agent or annotation"),
        ("UPDATE devices SET ceiling_slots = 1", InvalidRequest, "ceiling_slots"),
        ("INSERT INTO devices SELECT * FROM devices", ConstraintViolation, "exists already"),
        ("UPDATE devices SET node = 'nowhere'", ConstraintViolation, "not known yet"),
    ],
)
async def test_a_mistake_gets_a_sentence(
    database: Database, statement: str, error: type[HamiError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        await database.fetch(statement)
