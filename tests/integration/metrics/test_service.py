"""The metrics service on a real PostgreSQL and NATS: reports in, rows and Prometheus out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.bootstrap import MetricsApp, open_app
from hami_metrics.domain.samples import Sample, Series
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory
from hami_metrics.settings import Settings
from hamicommon import events
from hamicommon.bus.client import Bus, open_bus
from hamicommon.domain.ids import GpuUuid
from hamicommon.events import ContainerSample, DeviceSample, Usage
from hamicommon.k8s.mig import MigReservation, MigSlice, encode_reservations
from hamicommon.settings import NatsSettings, PostgresSettings
from hamilocal.servers import processes
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data import postgres
from pydantic import SecretStr

from tests.servers import migrate
from tests.waiting import eventually

pytestmark = pytest.mark.integration


def settings(postgres_dsn: str, nats_url: str) -> Settings:
    return Settings(
        http_bind="127.0.0.1:0",
        snapshot_interval_s=0.1,
        rollup_interval_s=0.1,
        rollup_grace_s=0,
        postgres=PostgresSettings(dsn=SecretStr(postgres_dsn)),
        nats=NatsSettings(url=nats_url),
    )


@asynccontextmanager
async def running(
    postgres_dsn: str, nats_url: str
) -> AsyncIterator[tuple[MetricsApp, httpx.AsyncClient]]:
    async with (
        open_app(settings(postgres_dsn, nats_url)) as app,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}") as http,
    ):
        yield app, http


@asynccontextmanager
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with open_bus(NatsSettings(url=nats_url), "test", owns_streams=True) as client:
        yield client


@asynccontextmanager
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    await eventually(condition, what)


def report(sequence: int, at: datetime) -> Usage:
    return Usage(
        node="n1",
        agent_id="a1",
        sequence=sequence,
        sampled_at=at,
        devices=(
            DeviceSample(
                uuid="GPU-1",
                index=0,
                type="A100",
                memory_used_bytes=500,
                memory_total_bytes=1000,
                gpu_percent=40.0,
            ),
        ),
        containers=(
            ContainerSample(
                pod_uid="u1",
                namespace="ns",
                pod="p",
                container="c",
                vdevice_index=0,
                uuid="GPU-1",
                memory_used_bytes=100,
                memory_limit_bytes=200,
                core_percent=None,
                core_limit_percent=30,
            ),
        ),
    )


async def publish(client: Bus, usage: Usage) -> None:
    subject = events.usage_subject(usage.node)
    await client.publish(subject, usage, message_id=f"{usage.agent_id}-{usage.sequence}")


async def test_reports_become_samples_and_sums(postgres_dsn: str, nats_url: str) -> None:
    past = datetime.now(UTC) - timedelta(minutes=20)
    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url),
        sql(postgres_dsn) as db,
    ):
        for sequence in range(3):
            await publish(client, report(sequence, past + timedelta(milliseconds=sequence)))

        async def summed() -> bool:
            query = "SELECT sum(sample_count) FROM usage_rollups WHERE bucket_s = $1"
            return await db.fetchval(query, 300) == 6 == await db.fetchval(query, 3600)

        await until("three reports summed up", summed)
        rows = await db.fetch(
            "SELECT container, memory_used_sum_bytes / sample_count AS memory, core_percent_sum "
            "FROM usage_rollups WHERE bucket_s = 3600 ORDER BY container"
        )
        assert [tuple(row) for row in rows] == [("", 500.0, 120.0), ("c", 100.0, None)]


async def test_refusals_at_admission_are_stored_once(postgres_dsn: str, nats_url: str) -> None:
    def refused(uid: str, user: str) -> events.AdmissionRefused:
        return events.AdmissionRefused(
            review_uid=uid,
            namespace="team",
            pod_name="train-*",
            user=user,
            groups=("system:authenticated",),
            reason="privileged",
            said="container c is privileged",  # codespell:ignore said
            at=datetime.now(UTC),
        )

    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url) as (_, http),
        sql(postgres_dsn) as db,
    ):
        # The bus drops a repeated id itself; here each message has its own.
        for number, (uid, user) in enumerate(
            (("a", "ann"), ("b", "ann"), ("a", "ann"), ("c", "bo"))
        ):
            await client.publish(
                events.ADMISSION_REFUSED_SUBJECT, refused(uid, user), message_id=f"m{number}"
            )

        async def counted() -> bool:
            shown = (await http.get("/metrics")).text
            return (
                'hami_metrics_admission_refusals_total{result="repeated"} 1.0' in shown
                and await db.fetchval("SELECT sum(repeat_count) FROM admission_refusals") == 3
            )

        await until("three refusals, one of them delivered twice", counted)
        rows = await db.fetch("SELECT username, repeat_count FROM admission_refusals ORDER BY 1")
        assert [tuple(row) for row in rows] == [("ann", 2), ("bo", 1)]


async def test_sums_count_a_granted_pod_while_it_held_its_grant(postgres_dsn: str) -> None:
    """Samples before, during, between, and after two grants; a pod without any counts as it is."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)

    def at(minute: float) -> datetime:
        return hour + timedelta(minutes=minute)

    def sample(pod_uid: str, minute: float) -> Sample:
        series = Series(
            node="n1",
            device_uuid="GPU-1",
            pod_uid=pod_uid,
            namespace="ns" if pod_uid else "",
            pod_name=pod_uid,
            container="c" if pod_uid else "",
        )
        return Sample(
            series=series,
            sampled_at=at(minute),
            memory_used_bytes=100,
            memory_limit_bytes=200,
            core_percent=50.0 if minute in (2, 9) else 0.0,
            core_limit_percent=50,
        )

    async with asyncpg.create_pool(postgres_dsn, min_size=1) as pool, sql(postgres_dsn) as db:
        store = PostgresUsageStore(pool)
        await fill(db)
        await db.execute("UPDATE allocations SET reserved_at = $1", at(8))
        await db.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " annotations, reserved_at, ended_at)"
            " VALUES (gen_random_uuid(), 'u1', 'ns', 'p', 2, 'n1', 'released', '{}', $1, $2)",
            at(1.5),
            at(3),
        )
        # Before, during, at the very end, between the two, during the second.
        minutes = (1, 2, 3, 4, 9)
        everybody = ("u1", "without-grant", "")
        await store.write([sample(uid, minute) for uid in everybody for minute in minutes])

        history = UsageHistory(
            store, MetricsInstruments(), lambda: hour + timedelta(hours=1, minutes=1), grace_s=0
        )
        await history.sum_up()

        rows = await db.fetch(
            "SELECT pod_uid, sample_count, core_percent_sum / sample_count AS core_percent"
            "  FROM usage_rollups WHERE bucket_s = 3600 ORDER BY pod_uid"
        )
        assert [tuple(row) for row in rows] == [
            ("", 5, 20.0),
            ("u1", 2, 50.0),
            ("without-grant", 5, 20.0),
        ]
        # What does not count is no reason to sum up again.
        assert await store.unsummed(300, hour) == []


async def test_repeated_reports_are_stored_once(postgres_dsn: str, nats_url: str) -> None:
    now = datetime.now(UTC)
    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url) as (app, _),
        sql(postgres_dsn) as db,
    ):
        subject = events.usage_subject("n1")
        for attempt in range(3):
            await client.publish(subject, report(1, now), message_id=f"try-{attempt}")

        async def seen() -> bool:
            value = app.instruments.registry.get_sample_value(
                "hami_metrics_usage_samples_total", {"result": "repeated"}
            )
            return value == 4

        await until("both repetitions seen", seen)
        assert await db.fetchval("SELECT count(*) FROM usage_samples") == 2


async def test_an_unreadable_report_goes_to_the_dead_letters_and_the_next_is_stored(
    postgres_dsn: str, nats_url: str
) -> None:
    from hamicommon.events import GrantSnapshotRequest

    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url),
        sql(postgres_dsn) as db,
    ):
        subject = events.usage_subject("n1")
        await client.publish(subject, GrantSnapshotRequest(node="n1"), message_id="wrong")
        await publish(client, report(1, datetime.now(UTC)))

        async def stored() -> bool:
            return bool(await db.fetchval("SELECT count(*) FROM usage_samples") == 2)

        await until("the good report stored", stored)


async def test_the_page_shows_the_ledger_and_is_empty_of_it_when_stale(
    postgres_dsn: str, nats_url: str
) -> None:
    async with bus(nats_url), sql(postgres_dsn) as db:
        await fill(db)
        async with running(postgres_dsn, nats_url) as (_, http):

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until("ready", ready)
            page = (await http.get("/metrics")).text

    labels = 'device_index="0",device_type="A100",device_uuid="GPU-1",node="n1",zone="vGPU"'
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert (value_of(lines, "hami_gpu_shared_count", labels)) == 2
    assert 'hami_allocations{state="bound"} 1.0' in lines
    assert 'hami_decisions_last_5m{outcome="refused"} 3.0' in lines
    assert "hami_pending_pods 1.0" in lines
    assert 'hami_pending_pods_by_reason{reason="CardInsufficientMemory"} 1.0' in lines
    slices = [line for line in lines if line.startswith("hami_vgpu_memory_allocated_bytes")]
    # init asked for 30 MiB, two app containers for 10 each: the card holds 30.
    assert [float(line.rpartition(" ")[2]) for line in slices] == [30 * 1024 * 1024]
    made = [line for line in lines if line.startswith("hami_node_gpu_mig_instance_info{")]
    # Two containers share it, and what is only reserved is not there.
    assert len(made) == 1
    assert sorted(made[0].partition("{")[2].rpartition("}")[0].split(",")) == [
        'compute_instance_id="0"',
        'device_index="0"',
        'device_uuid="GPU-1"',
        'gpu_instance_id="7"',
        'mig_uuid="MIG-1"',
        'node="n1"',
        'placement_size="2"',
        'placement_start="4"',
        'profile="2g.20gb"',
        'zone="vGPU"',
    ]


HALF = MigSlice(profile="2g.20gb", start=4, size=2)
MADE = MigReservation(
    container_index=0,
    device_index=0,
    card=GpuUuid("GPU-1"),
    slice=HALF,
    mig_uuid="MIG-1",
    gpu_instance_id=7,
    compute_instance_id=0,
)
RESERVED = (
    MADE,
    replace(MADE, container_index=1),
    MigReservation(container_index=2, device_index=0, card=MADE.card, slice=HALF),
)


def value_of(lines: list[str], name: str, labels: str) -> float | None:
    """The value of the sample with these labels, whatever their order."""
    for line in lines:
        if line.startswith(f"{name}{{"):
            inside, _, value = line[len(name) + 1 :].rpartition("} ")
            if sorted(inside.split(",")) == sorted(labels.split(",")):
                return float(value)
    return None


async def fill(db: Any) -> None:
    allocation = "00000000-0000-4000-8000-000000000001"
    await db.execute("INSERT INTO nodes (name, inventory_at) VALUES ('n1', now())")
    await db.execute(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent, "
        "used_slots, used_memory_mib, used_core_percent, ceiling_slots, ceiling_memory_mib, "
        "ceiling_core_percent, healthy) "
        "VALUES ('GPU-1', 'n1', 'NVIDIA', 0, 'A100', 10, 1000, 100, 2, 30, 20, 10, 1000, 100, true)"
    )
    await db.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, "
        "annotations) VALUES ($1, 'u1', 'ns', 'p', 1, 'n1', 'bound', $2)",
        allocation,
        json.dumps({"hami.io/vgpu-mig-allocations": encode_reservations(RESERVED)}),
    )
    shares = [(0, "init", 30), (1, "app", 10), (2, "app", 10)]
    await db.executemany(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, "
        "role, device_uuid, vendor, memory_mib, core_percent) "
        "VALUES ($1, $2::int, 0, 'c' || $2::int, $3, 'GPU-1', 'NVIDIA', $4, 10)",
        [(allocation, *share) for share in shares],
    )
    await db.execute(
        "INSERT INTO decisions (pod_uid, namespace, pod_name, outcome, reason_counts, repeat_count)"
        " VALUES ('u2', 'ns', 'q', 'refused', '{\"CardInsufficientMemory\": 2}', 3)"
    )


async def test_postgres_and_nats_may_be_away_and_come_back(tmp_path: Path) -> None:
    """Reports published while Postgres is away are stored when it is back."""
    tmp_path.chmod(0o755)
    database = postgres.prepare(tmp_path / "postgres", durable=False)
    bus_plan = nats_server.prepare(tmp_path / "nats")
    async with running(database.url, bus_plan.url) as (app, http):

        def metric(name: str, **labels: str) -> float:
            return app.instruments.registry.get_sample_value(name, labels) or 0.0

        assert (await http.get("/readyz")).status_code == 503
        with processes.running(bus_plan, die_with_parent=True):
            async with bus(bus_plan.url) as client:
                for sequence in range(3):
                    await publish(client, report(sequence, datetime.now(UTC)))

                async def refused() -> bool:
                    return metric("hami_metrics_store_failures_total", what="samples") > 0

                await until("a report refused by the missing database", refused)
                with processes.running(database, die_with_parent=True):
                    await asyncio.to_thread(migrate, database.url)

                    async def stored() -> bool:
                        name = "hami_metrics_usage_samples_total"
                        ready = (await http.get("/readyz")).status_code == 200
                        return ready and metric(name, result="stored") == 6

                    await until("all reports stored and ready", stored)
                    assert metric("hami_metrics_usage_reports_lost_total") == 0
