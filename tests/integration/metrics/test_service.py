"""The metrics service on a real PostgreSQL and NATS: reports in, rows and Prometheus out."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hamicommon import events
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data import postgres

from tests import processes
from tests.integration.metrics.service import bus, grant, publish, report, running, sql, until
from tests.servers import migrate


async def test_reports_become_samples_and_sums(postgres_dsn: str, nats_url: str) -> None:
    past = datetime.now(UTC) - timedelta(minutes=20)
    await grant(postgres_dsn)
    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url),
        sql(postgres_dsn) as db,
    ):
        for sequence in range(3):
            await publish(client, report(sequence, past + timedelta(milliseconds=sequence)))

        async def is_summed() -> bool:
            query = "SELECT sum(sample_count) FROM usage_rollups WHERE bucket_s = $1"
            return await db.fetchval(query, 300) == 6 == await db.fetchval(query, 3600)

        await until("three reports summed up", is_summed)
        rows = await db.fetch(
            "SELECT container, memory_used_sum_bytes / sample_count AS memory, core_percent_sum "
            "FROM usage_rollups WHERE bucket_s = 3600 ORDER BY container"
        )
        assert [tuple(row) for row in rows] == [("", 500.0, 120.0), ("c", 100.0, None)]


async def test_refusals_at_admission_are_stored_once(postgres_dsn: str, nats_url: str) -> None:
    def make_refusal(uid: str, user: str) -> events.AdmissionRefused:
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
                events.ADMISSION_REFUSED_SUBJECT, make_refusal(uid, user), message_id=f"m{number}"
            )

        async def has_counted() -> bool:
            shown = (await http.get("/metrics")).text
            return (
                'hami_metrics_admission_refusals_total{result="repeated"} 1.0' in shown
                and await db.fetchval("SELECT sum(repeat_count) FROM admission_refusals") == 3
            )

        await until("three refusals, one of them delivered twice", has_counted)
        rows = await db.fetch("SELECT username, repeat_count FROM admission_refusals ORDER BY 1")
        assert [tuple(row) for row in rows] == [("ann", 2), ("bo", 1)]


async def test_repeated_reports_are_stored_once(postgres_dsn: str, nats_url: str) -> None:
    now = datetime.now(UTC)
    await grant(postgres_dsn)
    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url) as (app, _),
        sql(postgres_dsn) as db,
    ):
        subject = events.usage_subject("n1")
        for attempt in range(3):
            await client.publish(subject, report(1, now), message_id=f"try-{attempt}")

        async def has_both() -> bool:
            value = app.instruments.registry.get_sample_value(
                "hami_usage_samples_total", {"result": "repeated"}
            )
            return value == 4

        await until("both repetitions seen", has_both)
        assert await db.fetchval("SELECT count(*) FROM usage_samples") == 2


async def test_an_unreadable_report_goes_to_the_dead_letters_and_the_next_is_stored(
    postgres_dsn: str, nats_url: str
) -> None:
    from hamicommon.events import GrantSnapshotRequest

    await grant(postgres_dsn)
    async with (
        bus(nats_url) as client,
        running(postgres_dsn, nats_url),
        sql(postgres_dsn) as db,
    ):
        subject = events.usage_subject("n1")
        await client.publish(subject, GrantSnapshotRequest(node="n1"), message_id="wrong")
        await publish(client, report(1, datetime.now(UTC)))

        async def is_stored() -> bool:
            return bool(await db.fetchval("SELECT count(*) FROM usage_samples") == 2)

        await until("the good report stored", is_stored)


async def test_postgres_and_nats_may_be_away_and_come_back(tmp_path: Path) -> None:
    """Reports published while Postgres is away are stored when it is back."""
    tmp_path.chmod(0o755)
    database = postgres.prepare(tmp_path / "postgres", durable=False)
    bus_plan = nats_server.prepare(tmp_path / "nats")
    with processes.running(database, die_with_parent=True):
        await asyncio.to_thread(migrate, database.url)
        await grant(database.url)
    async with running(database.url, bus_plan.url) as (app, http):

        def metric(name: str, **labels: str) -> float:
            return app.instruments.registry.get_sample_value(name, labels) or 0.0

        assert (await http.get("/readyz")).status_code == 503
        with processes.running(bus_plan, die_with_parent=True):
            async with bus(bus_plan.url) as client:
                for sequence in range(3):
                    await publish(client, report(sequence, datetime.now(UTC)))

                async def make_refusal() -> bool:
                    return metric("hami_metrics_store_failures_total", what="samples") > 0

                await until("a report refused by the missing database", make_refusal)
                with processes.running(database, die_with_parent=True):

                    async def is_stored() -> bool:
                        name = "hami_usage_samples_total"
                        ready = (await http.get("/readyz")).status_code == 200
                        return ready and metric(name, result="stored") == 6

                    await until("all reports stored and ready", is_stored)
                    assert metric("hami_metrics_usage_reports_lost_total") == 0
