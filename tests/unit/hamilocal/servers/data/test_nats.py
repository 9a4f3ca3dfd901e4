"""NATS from the wheel: streams are kept, permissions are the server's own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
import pytest
from hamilocal.servers.data import nats as embedded
from hamilocal.servers.data.nats import NatsUser, render_nats_config
from nats.aio.client import Client

from tests.processes import running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

NODE_A = NatsUser(
    name="node-a",
    password="a",
    publish=("hami.usage.v1.a",),
    subscribe=("hami.grants.v1.a", "_INBOX_a.>"),
)
SCHEDULER = NatsUser(name="scheduler", password="s")


async def test_a_message_survives_a_killed_server(tmp_path: Path) -> None:
    with running(embedded.prepare(tmp_path), die_with_parent=True) as server:
        client = await nats.connect(server.value.url)
        await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
        await client.jetstream().publish("kept", b"1")
        await client.close()
        server.kill()
    with running(embedded.prepare(tmp_path), die_with_parent=True) as server:
        client = await nats.connect(server.value.url)
        assert (await client.jetstream().stream_info("KEPT")).state.messages == 1
        await client.close()


async def test_a_user_receives_only_what_it_may_subscribe_to(tmp_path: Path) -> None:
    plan = embedded.prepare(tmp_path, users=[NODE_A, SCHEDULER])
    with running(plan, die_with_parent=True) as server:
        refusals: asyncio.Queue[Exception] = asyncio.Queue()
        node = await _connect(server.value.url, NODE_A, refusals)
        scheduler = await _connect(server.value.url, SCHEDULER, asyncio.Queue())
        own = await node.subscribe("hami.grants.v1.a")
        await node.subscribe("hami.grants.v1.b")
        refusal = await asyncio.wait_for(refusals.get(), PATIENCE_S)
        assert "permissions violation" in str(refusal).lower()
        await scheduler.publish("hami.grants.v1.a", b"mine")
        assert (await own.next_msg(timeout=PATIENCE_S)).data == b"mine"
        await node.publish("hami.grants.v1.a", b"forged")
        assert (
            "permissions violation"
            in str(await asyncio.wait_for(refusals.get(), PATIENCE_S)).lower()
        )
        await node.close()
        await scheduler.close()


async def test_without_credentials_nobody_enters_when_there_are_users(tmp_path: Path) -> None:
    with running(embedded.prepare(tmp_path, users=[SCHEDULER]), die_with_parent=True) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.value.port)
        writer.write(b"CONNECT {}\r\nPING\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert b"-ERR 'Authorization Violation'" in answer
        writer.close()
        await writer.wait_closed()


async def _connect(url: str, user: NatsUser, refusals: asyncio.Queue[Exception]) -> Client:
    async def record(error: Exception) -> None:
        refusals.put_nowait(error)

    return await nats.connect(
        url,
        user=user.name,
        password=user.password,
        inbox_prefix=f"_INBOX_{user.name.removeprefix('node-')}".encode(),
        error_cb=record,
    )


def test_it_listens_on_loopback_and_keeps_streams_in_the_given_folder() -> None:
    config = json.loads(render_nats_config(port=4222, store_dir="/data", server_name="one"))
    assert (config["host"], config["port"]) == ("127.0.0.1", 4222)
    assert config["jetstream"] == {"store_dir": "/data", "strict": True}
    assert "authorization" not in config


def test_no_subject_at_all_is_a_refusal_of_everything() -> None:
    user = NatsUser(name="reader", password="x", publish=())
    config = json.loads(render_nats_config(port=1, store_dir="/d", server_name="one", users=[user]))
    assert config["authorization"]["users"][0]["permissions"] == {"publish": {"deny": [">"]}}
