"""Every sum of the ledger counts sidecars beside init containers, old rows as before."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.requests import Role
from hamicommon.ledger import invariants
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.migrations import upgrade as schema
from hamicommon.ledger.migrations.revisions import NEEDED
from hamicommon.ledger.questions import answer
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.contract.ledger.allocation_stores import Harness, S, card, container, draft, quota_of
from tests.servers import in_thread, psql

MIGRATIONS = Path("migrations")
OLD = "00000000-0000-4000-8000-000000000001"
# As the version before wrote it: a card of 16000 MiB, a sidecar, an init container, a container.
OLD_GRANT = f"""
INSERT INTO nodes (name, source) VALUES ('node-a', 'agent');
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent, healthy,
                     ceiling_slots, ceiling_memory_mib, ceiling_core_percent, used_slots,
                     used_memory_mib, used_core_percent)
  VALUES ('GPU-0', 'node-a', 'NVIDIA', 0, 'A100', 10, 16000, 100, true, 10, 16000, 100,
          2, 12000, 0);
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)
  VALUES ('{OLD}', 'old', 'team', 'old', 1, 'node-a', 'allocated');
INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  VALUES ('{OLD}', 0, 'proxy', 'app'), ('{OLD}', 1, 'setup', 'init'), ('{OLD}', 2, 'main', 'app');
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent)
  VALUES ('{OLD}', 0, 0, 'proxy', 'app', 'GPU-0', 'NVIDIA', 6000, 0),
         ('{OLD}', 1, 0, 'setup', 'init', 'GPU-0', 'NVIDIA', 12000, 0),
         ('{OLD}', 2, 0, 'main', 'app', 'GPU-0', 'NVIDIA', 3000, 0);
INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)
  VALUES ('old', 1, '{OLD}', 'allocated');
"""


def harness_of(database: Database) -> Harness:
    store = PostgresAllocationStore(database, quota_of=quota_of, on_commit=lambda: None)
    return Harness(
        store=store,
        ledger=store,
        database=database,
        inventory=PostgresInventory(database, on_commit=lambda: None),
    )


@pytest.fixture
async def harness(postgres_dsn: str) -> AsyncIterator[Harness]:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as database:
        yield harness_of(database)


async def test_what_was_granted_before_the_upgrade_counts_as_it_was_counted(
    empty_postgres_dsn: str,
) -> None:
    settings = PostgresSettings(dsn=SecretStr(empty_postgres_dsn))
    in_thread(lambda: schema.upgrade(settings, MIGRATIONS, "0031"))
    psql(empty_postgres_dsn, OLD_GRANT)
    in_thread(lambda: schema.upgrade(settings, MIGRATIONS))

    async with open_database(settings, application="test") as database:
        harness = harness_of(database)
        assert await broken(empty_postgres_dsn) == []
        await harness.store.begin(
            draft(
                "new",
                container(("0", 1000, 0), name="proxy", role="sidecar"),
                container(("0", 3000, 0), index=1, name="setup", role="init"),
            )
        )
        assert await harness.used_amounts("0") == (4, 16_000, 0)
        assert await broken(empty_postgres_dsn) == []
        await harness.advance("old", S.RELEASED)
        assert await harness.used_amounts("0") == (2, 4000, 0)
        assert await broken(empty_postgres_dsn) == []


def test_a_ledger_that_is_taken_back_has_sidecars_as_app_containers(
    empty_postgres_dsn: str,
) -> None:
    settings = PostgresSettings(dsn=SecretStr(empty_postgres_dsn))
    schema.upgrade(settings, MIGRATIONS, NEEDED)
    psql(empty_postgres_dsn, OLD_GRANT)
    psql(empty_postgres_dsn, "UPDATE allocation_devices SET sidecar = container_index = 0")

    schema.downgrade(settings, MIGRATIONS, "pre@-1")

    roles = psql(empty_postgres_dsn, "SELECT role FROM allocation_devices ORDER BY container_index")
    assert roles.split() == ["app", "init", "app"]


async def broken(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return await invariants.broken(connection)
    finally:
        await connection.close()


def random_pod(r: Random) -> tuple[ContainerGrant, ...]:
    """Init containers and sidecars in any order, then containers, on some of three cards."""
    first: list[Role] = [r.choice(["init", "sidecar"]) for _ in range(r.randint(0, 4))]
    roles: list[Role] = [*first, *["app"] * r.randint(1, 2)]
    return tuple(
        container(
            *(
                (name, r.randint(1, 300), r.randint(0, 20))
                for name in r.sample("012", r.randint(1, 2))
            ),
            index=index,
            name=f"c{index}",
            role=role,
        )
        for index, role in enumerate(roles)
    )


async def test_every_sum_of_the_ledger_is_what_the_pods_hold(
    harness: Harness, postgres_dsn: str
) -> None:
    names = ("0", "1", "2")
    await harness.add(
        *(
            card(name, index=int(name), slots=10_000, memory_mib=10**6, core_percent=10**5)
            for name in names
        )
    )
    r = Random(0)
    pods = [random_pod(r) for _ in range(60)]
    for number, containers in enumerate(pods):
        await harness.store.begin(draft(f"p{number}", *containers))
    held = {
        f"GPU-{name}": [
            sum(amounts)
            for amounts in zip(
                *(
                    (one.slots, one.memory_mib, one.core_percent)
                    for containers in pods
                    for one in footprints(containers)
                    if one.uuid == f"GPU-{name}"
                ),
                strict=True,
            )
        ]
        for name in names
    }

    assert {f"GPU-{name}": [*await harness.used_amounts(name)] for name in names} == held
    connection = await connect(postgres_dsn)
    try:
        assert await invariants.broken(connection) == []
        cards = (await answer(connection, "cards")).rows
        assert {
            row["device_uuid"]: [
                row["held_slot_count"],
                row["held_memory_bytes"] >> 20,
                round(row["held_core_ratio"] * 100),
            ]
            for row in cards
        } == held
        [node] = (await answer(connection, "nodes")).rows
        assert node["held_memory_bytes"] >> 20 == sum(memory for _, memory, _ in held.values())
        uses = (await answer(connection, "pod-use", limit=100)).rows
        expected = {
            f"p{number}": sum(one.memory_mib for one in footprints(containers))
            for number, containers in enumerate(pods)
        }
        assert {row["pod_uid"]: row["memory_bytes"] >> 20 for row in uses} == expected
    finally:
        await connection.close()


async def connect(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", encoder=str, decoder=lambda text: str(UUID(text))
    )
    return connection


async def test_time_that_was_held_is_summed_up_with_the_sidecars(
    harness: Harness, postgres_dsn: str
) -> None:
    await harness.add(card("0"))
    containers = (
        container(("0", 100, 10), name="proxy", role="sidecar"),
        container(("0", 400, 40), index=1, name="setup", role="init"),
        container(("0", 200, 20), index=2, name="main"),
    )
    await harness.store.begin(draft("p", *containers))
    connection = await connect(postgres_dsn)
    try:
        await connection.execute("UPDATE allocations SET reserved_at = now() - interval '1 hour'")
        await connection.execute("UPDATE device_periods SET began_at = now() - interval '2 hours'")
        span = "now() - interval '40 minutes', now() - interval '10 minutes'"
        capacity = await connection.fetchrow(f"SELECT * FROM capacity_between({span})")
        assert capacity["held_s"] == pytest.approx(1800 * 0.5)
        held = await connection.fetchrow(
            f"SELECT * FROM showback_between({span}) WHERE kind = 'held'"
        )
        second = 1_000_000
        assert held["memory_us"] == 1800 * second // 2
        assert held["core_us"] == 1800 * second // 2
        assert held["slot_us"] == 1800 * second * 2 // 3
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ("sidecar", "init", False),
        ("init", "sidecar", True),
        ("init", "init", True),
        ("init", "app", True),
        ("sidecar", "app", False),
        ("sidecar", "sidecar", False),
        ("app", "app", False),
    ],
)
def test_places_on_a_mig_card_overlap_only_of_slices_that_are_never_held_together(
    postgres_dsn: str, first: str, second: str, allowed: bool
) -> None:
    detail: dict[str, Any] = {"placement": {"start": 0, "size": 2}}
    holdings = json.dumps({"a": [{"role": role, "detail": detail} for role in (first, second)]})

    found = psql(postgres_dsn, f"SELECT hami_placements_disjoint('{holdings}')")

    assert (found == "t") is allowed
