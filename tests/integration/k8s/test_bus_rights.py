"""Calls of scheduler, metrics and webhook on a bus with the rights of `k8s/`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hamicommon import events
from hamicommon.bus.client import FeedKind, Message
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.deliveries import DELIVERIES, REFUSALS, USAGE
from hamicommon.bus.permissions import METRICS_USER, SCHEDULER_USER, WEBHOOK_USER
from hamicommon.errors import InvalidRequest
from hamicommon.settings import NatsSettings
from pydantic import BaseModel, SecretStr

from tests.integration.k8s.bus import bus_server
from tests.waiting import PATIENCE_S

INBOXES = f"_INBOX_{SCHEDULER_USER}".encode()


def as_user(url: str, name: str) -> NatsSettings:
    return NatsSettings(url=url, user=name, password=SecretStr("secret"))


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    tmp_path.chmod(0o755)
    with bus_server(tmp_path, Ed25519PrivateKey.generate().public_key()) as found:
        yield found


def usage(sequence: int) -> events.Usage:
    return events.Usage(
        node="a",
        agent_id="agent",
        sequence=sequence,
        sampled_at=datetime.now(UTC),
        devices=(),
        containers=(),
    )


def refusal(number: int) -> events.AdmissionRefused:
    return events.AdmissionRefused(
        review_uid=str(number),
        namespace="default",
        pod_name="p",
        user="somebody",
        reason="tampering",
        said="no",  # codespell:ignore said
        at=datetime.now(UTC),
        code=403,
    )


async def test_metrics_takes_in_usage_and_refusals_and_buries_what_it_can_not_read(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    read: asyncio.Queue[str] = asyncio.Queue()
    poison = {"hami.usage.v1.a": 2, events.ADMISSION_REFUSED_SUBJECT: 2}
    seen: dict[str, int] = {}

    async def take(message: Message) -> None:
        seen[message.subject] = seen.get(message.subject, 0) + 1
        if seen[message.subject] == poison[message.subject]:
            raise InvalidRequest("poison")
        read.put_nowait(message.subject)

    async with AsyncExitStack() as stack:
        scheduler, webhook, metrics = [
            await stack.enter_async_context(
                open_bus(as_user(url, name), name, owns_streams=name == SCHEDULER_USER)
            )
            for name in (SCHEDULER_USER, WEBHOOK_USER, METRICS_USER)
        ]
        loops = [
            *(metrics.consume(what, take) for what in (USAGE, REFUSALS)),
            scheduler.settle_deliveries("scheduler"),
        ]
        for loop in loops:
            stack.callback(asyncio.create_task(loop).cancel)
        for number in (1, 2, 3):
            await scheduler.publish("hami.usage.v1.a", usage(number), message_id=f"u{number}")
            await webhook.publish(
                events.ADMISSION_REFUSED_SUBJECT, refusal(number), message_id=f"r{number}"
            )
        async with asyncio.timeout(PATIENCE_S):
            got = sorted([await read.get() for _ in range(4)])
            while await scheduler.letters.count() < 2 or await count_unsettled(url):
                await asyncio.sleep(0.05)
        assert got == [events.ADMISSION_REFUSED_SUBJECT] * 2 + ["hami.usage.v1.a"] * 2
        assert {letter.user for letter in await scheduler.letters.latest(5)} == {METRICS_USER}

    assert list_refusals(caplog) == []


async def test_the_webhook_reads_the_cluster_and_its_quotas(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    read: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: Message) -> None:
        read.put_nowait(message.subject)

    async with (
        open_bus(as_user(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True) as scheduler,
        open_bus(as_user(url, WEBHOOK_USER), WEBHOOK_USER) as webhook,
    ):
        tasks = [asyncio.create_task(webhook.follow_feed(feed, take)) for feed in FeedKind]
        tasks.append(asyncio.create_task(scheduler.serve_feeds("scheduler")))
        subjects = [events.LEDGER_CLUSTER_SUBJECT, events.ledger_quota_subject("team-a")]
        subjects.append(events.inventory_subject("a"))
        for subject in subjects:
            await scheduler.publish(subject, Anything(), message_id=subject)
        async with asyncio.timeout(PATIENCE_S):
            assert sorted([await read.get() for _ in subjects]) == sorted(subjects)
        for task in tasks:
            task.cancel()

    assert list_refusals(caplog) == []


@pytest.mark.parametrize("name", [METRICS_USER, WEBHOOK_USER])
async def test_neither_of_them_writes_what_the_scheduler_or_a_node_does(
    url: str, name: str
) -> None:
    stream, consumer, subjects = USAGE.stream, USAGE.consumer, USAGE.subject
    errors: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(exc: Exception) -> None:
        errors.put_nowait(str(exc).lower())

    async with open_bus(as_user(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True):
        client = await nats.connect(
            url,
            user=name,
            password="secret",
            error_cb=on_error,
            inbox_prefix=f"_INBOX_{name}".encode(),
        )
        try:
            for subject in (
                events.grants_subject("a"),
                events.reports_subject("a"),
                events.LEDGER_CLUSTER_SUBJECT,
                events.event_subject("allocation", "released"),
                f"$JS.API.CONSUMER.CREATE.{stream}.x.{subjects}",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
                f"$JS.API.CONSUMER.DELETE.{stream}.{consumer}",
                f"$JS.API.STREAM.PURGE.{stream}",
                f"$JS.API.DIRECT.GET.{stream}",
                f"$JS.ACK.{stream}.{consumer}.1.1.1.1.0",
                f"$JS.FC.{stream}.{consumer}.x",
            ):
                await client.publish(subject, b"{}", reply=f"_INBOX_{name}.x")
                async with asyncio.timeout(PATIENCE_S):
                    message = await errors.get()
                assert "permissions violation" in message, message
                assert subject.lower() in message, (subject, message)
        finally:
            await client.close()


class Anything(BaseModel):
    """Message whose content does not matter."""


async def count_unsettled(url: str) -> int:
    """Return the number of delivered messages without an acknowledgement."""
    client = await nats.connect(url, user=SCHEDULER_USER, password="secret", inbox_prefix=INBOXES)
    try:
        js = client.jetstream()
        found = [await js.consumer_info(each.stream, each.consumer) for each in DELIVERIES]
    finally:
        await client.close()
    return sum(each.num_ack_pending + each.num_pending for each in found)


def list_refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the server's refusals in the log."""
    errors = (str(getattr(record, "error", "")) for record in caplog.records)
    return [error for error in errors if "permissions" in error.lower()]
