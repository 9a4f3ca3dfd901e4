"""Rights on the bus: readers and writers of each subject."""

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path

import nats
import nats.errors
import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, NobodyAnswers
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import agent_user
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats import NatsUser, agent_nats_user

from tests.integration.bus.conftest import Inbox, inventory, settings_of
from tests.processes import running
from tests.waiting import PATIENCE_S


async def test_an_agent_reads_neither_the_grants_nor_the_replies_of_another_node(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    users = [NatsUser(name="admin", password="x")]
    users += [agent_nats_user(node, "x") for node in ("a", "b.example")]
    plan = nats_server.prepare(tmp_path / "nats", users=users)
    with running(plan, die_with_parent=True):
        async with (
            open_bus(settings_of(plan.url, "admin"), "admin", owns_streams=True) as admin,
            open_bus(settings_of(plan.url, agent_user("a")), "a") as agent,
        ):
            await _own_subjects_work(admin, agent)
        await _foreign_subjects_are_refused(plan.url)


async def _own_subjects_work(admin: Bus, agent: Bus) -> None:
    inbox = Inbox()

    async def answer(subject: str, _data: bytes) -> events.GrantSnapshot:
        return events.GrantSnapshot(
            node=subject.rpartition(".")[2], complete=True, taken_at=datetime.now(UTC)
        )

    serving = asyncio.create_task(admin.serve("hami.grants.snapshot.*", "q", answer))
    consuming = asyncio.create_task(agent.follow([events.grants_subject("a")], inbox.take))
    question = events.GrantSnapshotRequest(node="a")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                reply = await agent.request(events.snapshot_subject("a"), question)
                break
            except NobodyAnswers:
                await asyncio.sleep(0.05)
    withdrawn = events.GrantWithdrawn(
        allocation_id="1", pod_uid="1", node="a", token=1, reason="test"
    )
    await admin.publish(events.grants_subject("a"), withdrawn, message_id="1")
    assert b'"test"' in (await inbox.next()).data
    await agent.publish(events.inventory_subject("a"), inventory("a"), message_id="2")
    assert events.GrantSnapshot.model_validate_json(reply).node == "a"
    for task in (serving, consuming):
        task.cancel()


async def _foreign_subjects_are_refused(url: str) -> None:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(exc: Exception) -> None:
        refused.put_nowait(str(exc).lower())

    client = await nats.connect(
        url, user=agent_user("a"), password="x", error_cb=on_error, inbox_prefix=b"_INBOX_agent-a"
    )
    other = "b.example"
    try:
        for subject in (
            "_INBOX_agent-b_example.>",
            "_INBOX.>",
            events.grants_subject(other),
            ">",
        ):
            await client.subscribe(subject)
            await _permission_error(refused, subject)
        create = f"$JS.API.CONSUMER.CREATE.HAMI_GRANTS.x.{events.grants_subject(other)}"
        for subject in (
            create,
            f"$JS.API.CONSUMER.CREATE.HAMI_GRANTS.agent-a.{events.grants_subject('a')}",
            "$JS.API.CONSUMER.MSG.NEXT.HAMI_GRANTS.agent-a",
            "$JS.API.STREAM.MSG.GET.HAMI_GRANTS",
            "$JS.API.DIRECT.GET.HAMI_GRANTS",
            events.snapshot_subject(other),
            events.inventory_subject(other),
            events.reports_subject(other),
        ):
            await client.publish(subject, b"{}")
            await _permission_error(refused, subject)
    finally:
        await client.close()


@pytest.mark.parametrize("reply", ["hami.reports.v1.b", "_INBOX_agent-b.x", "_INBOX_agent-ab.x"])
async def test_a_question_whose_answer_would_go_to_anothers_subject_has_none(
    tmp_path: Path, reply: str
) -> None:
    """The server does not check a reply subject against the caller's rights."""
    tmp_path.chmod(0o755)
    users = [NatsUser(name="admin", password="x"), agent_nats_user("a", "x")]
    plan = nats_server.prepare(tmp_path / "nats", users=users)
    heard, answered = Inbox(), asyncio.Event()

    async def answer(subject: str, _data: bytes) -> events.GrantSnapshot:
        answered.set()
        node = subject.rpartition(".")[2]
        return events.GrantSnapshot(node=node, complete=True, taken_at=datetime.now(UTC))

    with running(plan, die_with_parent=True):
        async with open_bus(settings_of(plan.url, "admin"), "admin", owns_streams=True) as admin:
            tasks = [
                asyncio.create_task(admin.serve("hami.grants.snapshot.*", "q", answer)),
                asyncio.create_task(admin.follow([reply], heard.take)),
            ]
            client = await nats.connect(
                plan.url, user="agent-a", password="x", inbox_prefix=b"_INBOX_agent-a"
            )
            while not answered.is_set():
                await client.publish("hami.grants.snapshot.a", b"", reply=reply)
                # Served by then, and after it in order.
                with contextlib.suppress(nats.errors.NoRespondersError):
                    await client.request("hami.grants.snapshot.a", b"", timeout=PATIENCE_S)
            # Earlier messages arrive before this one.
            marker = await nats.connect(plan.url, user="admin", password="x")
            await marker.publish(reply, inventory("b").model_dump_json().encode())
            assert b'"agent_id"' in (await heard.next()).data
            await marker.close()
            await client.close()
            for task in tasks:
                task.cancel()


async def _permission_error(refused: asyncio.Queue[str], subject: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        message = await refused.get()
    assert "permissions violation" in message, message
    assert subject.lower() in message, (subject, message)
