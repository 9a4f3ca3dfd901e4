"""The operators' pages of the real service on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
from hami_metrics.bootstrap import MetricsApp, open_app
from hami_metrics.settings import Settings
from hamicommon.errors import InvalidRequest
from hamicommon.settings import NatsSettings, PostgresSettings
from pydantic import SecretStr

from bench.pages.ledger import fill
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


def settings(postgres_dsn: str, nats_url: str, **changes: Any) -> Settings:
    given: dict[str, Any] = {"pages_bind": "127.0.0.1:0", **changes}
    return Settings(
        http_bind="127.0.0.1:0",
        postgres=PostgresSettings(dsn=SecretStr(postgres_dsn)),
        nats=NatsSettings(url=nats_url),
        **given,
    )


@asynccontextmanager
async def pages(
    postgres_dsn: str, nats_url: str
) -> AsyncIterator[tuple[MetricsApp, httpx.AsyncClient]]:
    async with (
        open_app(settings(postgres_dsn, nats_url)) as app,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{app.pages_port}", timeout=PATIENCE_S
        ) as http,
    ):
        yield app, http


@pytest.fixture
async def db(postgres_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def text(http: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await http.get(path, follow_redirects=True)
    assert answer.status_code == status, answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


async def test_an_empty_ledger_is_shown_as_empty_with_the_next_step(
    postgres_dsn: str, nats_url: str
) -> None:
    async with pages(postgres_dsn, nats_url) as (app, http):
        assert app.pages is not None
        assert not app.pages.opened
        shown = await text(http, "/")

        assert "No GPU nodes have registered." in shown
        assert "hamictl doctor" in shown
        assert "ledger knows no node" in await text(http, "/nodes/n1", 404)
        assert "ledger knows no card" in await text(http, "/cards/GPU-1", 404)
        assert "there is no such page" in await text(http, "/metrics", 404)
        assert (await http.post("/")).status_code == 405


async def test_overview_node_and_card_show_what_the_ledger_has(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=3, cards=8, pods=60, waiting=3)
    held = await db.fetchval("SELECT count(*) FROM devices WHERE used_slots > 0")
    card = await db.fetchrow("SELECT uuid FROM devices WHERE node = 'n0001' AND index = 2")
    holders = await db.fetch(
        "SELECT a.namespace || '/' || a.pod_name AS pod FROM allocations a"
        " JOIN allocation_devices x ON x.allocation_id = a.id WHERE x.device_uuid = $1",
        card["uuid"],
    )
    async with pages(postgres_dsn, nats_url) as (_, http):
        overview = await text(http, "/")
        node = await text(http, "/nodes/n0001")
        one = await text(http, "/nodes/n0001/cards/2")

    assert '<b id="held">' + str(held) in overview
    assert '<b id="waiting">3' in overview
    assert "xid 79" in overview
    for row in holders:
        assert row["pod"] in overview
        assert row["pod"] in node
        assert row["pod"] in one
    assert card["uuid"] in one
    assert f"Held by <b>{len(holders)}</b> now" in one
    # Card 6 is not measured: unknown, which is no zero.
    assert re.search(r"\d / \? / 80 GiB", node)


async def test_a_page_of_the_past_is_of_that_moment(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=0)
    uuid = await db.fetchval("SELECT uuid FROM devices WHERE index = 0")
    began, ended = (datetime.now(UTC) - timedelta(minutes=m) for m in (60, 30))
    await db.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        " reserved_at, ended_at) VALUES (gen_random_uuid(), 'u1', 'nlp', 'gone-1', 1, 'n0001',"
        " 'released', $1, $2)",
        began,
        ended,
    )
    await db.execute(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent)"
        " SELECT id, 0, 0, 'main', 'app', $1, 'NVIDIA', 40960, 50 FROM allocations",
        uuid,
    )
    between = (began + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%MZ")
    before = (began - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%MZ")
    async with pages(postgres_dsn, nats_url) as (_, http):
        for path in ("/", "/nodes/n0001", f"/cards/{uuid}"):
            then = await text(http, f"{path}?at={between}")
            assert "nlp/gone-1" in then
            assert ">PAST</strong>" in then
            assert 'data-live=""' in then
        assert "nlp/gone-1" not in await text(http, "/")
        assert "nlp/gone-1" not in await text(http, f"/nodes/n0001?at={before}")
        assert "is in the future" in await text(http, "/?at=2999-01-01T00:00Z", 400)


async def test_while_the_ledger_is_away_the_last_state_is_shown_with_its_date(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):
        assert "Ledger unreachable" not in await text(http, "/")
        await db.execute("ALTER TABLE nodes RENAME TO nodes_away")

        async def stale() -> bool:
            shown = await text(http, "/")
            return "Ledger unreachable since" in shown and "n0001 card 0" in shown

        await eventually(stale, "the page that shows its last state")
        # What only that page reads of the ledger may be there; its state is as old as the others'.
        assert "Running pods are not affected" in await text(http, "/nodes/n0001/cards/0")
        await db.execute("ALTER TABLE nodes_away RENAME TO nodes")

        async def back() -> bool:
            return "Ledger unreachable" not in await text(http, "/")

        await eventually(back, "the page of the present state")


async def test_a_ledger_that_was_never_read_is_unknown_and_not_empty(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await db.execute("ALTER TABLE nodes RENAME TO nodes_away")
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/", 503)
        assert "that is unknown, not empty" in shown
        assert "No GPU nodes" not in shown


async def test_a_stream_brings_what_changed_and_ends_with_the_service(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=2, pods=4)

    async def events(http: httpx.AsyncClient) -> AsyncIterator[tuple[str, Any]]:
        async with http.stream("GET", "/live?grid=1&since=1") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))

    async with pages(postgres_dsn, nats_url) as (_, http):
        await text(http, "/")
        stream = events(http)
        assert (await anext(stream))[0] == "hello"
        await db.execute(
            "UPDATE devices SET healthy = false, health_reason = 'xid 48', updated_at = now()"
            " WHERE node = 'n0002' AND index = 1"
        )
        async with asyncio.timeout(PATIENCE_S):
            async for kind, data in stream:
                assert kind in ("cells", "resync")
                if "n0002" in data.get("nodes", {}):
                    break
        css, shown, label = data["nodes"]["n0002"][1]
        assert "n0001" not in data["nodes"]
        assert "sick" in css.split()
        assert shown.startswith("✖")
        assert "xid 48" in label
        await stream.aclose()

    async with pages(postgres_dsn, nats_url) as (_, http):
        stream = events(http)
        assert (await anext(stream))[0] == "hello"
    # The service has ended although the stream was open.
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(httpx.HTTPError):
            assert [kind async for kind, _ in stream if kind == "hello"] == []


async def test_a_locked_table_delays_no_page_for_long(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):
        await text(http, "/")
        async with db.transaction():
            await db.execute("LOCK TABLE devices IN ACCESS EXCLUSIVE MODE")

            async def stale() -> bool:
                return "Ledger unreachable since" in await text(http, "/")

            await eventually(stale, "the page of the last state")


HOSTILE = (
    "'; DROP TABLE devices; --",
    "sum(rate(hami_gpu_memory_allocated_bytes[5m]))",
    "http://169.254.169.254/latest/meta-data",
    "file:///etc/passwd",
    "../../../../etc/passwd",
    "<script>alert(1)</script>",
    "{{ 7*7 }}",
    "\x00",
    "9" * 400,
    "%",
)


READ = {
    "/": ("at", "q", "model", "owner", "sort", "query"),
    "/cards/{uuid}": ("at", "window", "after"),
}
"""Parameters by route; every route takes `at`."""


async def test_no_route_takes_a_query_an_address_or_a_script(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (app, http):
        await text(http, "/")
        assert app.pages is not None
        paths = app.pages.paths()
        assert set(paths) >= {"/", "/nodes/{name}", "/cards/{uuid}", "/static/{name}"}
        for path in paths:
            if path == "/live":
                continue
            for hostile in HOSTILE:
                asked = [(path, {name: hostile}) for name in READ.get(path, ("at",))]
                if "{" in path:
                    quoted = str(httpx.QueryParams({"x": hostile}))[2:]
                    asked = [(re.sub(r"{[^}]+}", quoted, path), {})]
                for filled, query in asked:
                    answer = await http.get(filled, params=query)
                    assert answer.status_code < 500, (filled, query)
                    assert "<script>alert" not in answer.text
                    assert "root:" not in answer.text
        assert await db.fetchval("SELECT count(*) FROM devices") == 2


async def test_pages_on_a_network_without_an_identity_do_not_start(
    postgres_dsn: str, nats_url: str
) -> None:
    with pytest.raises(InvalidRequest, match="nobody is asked who they are"):
        async with open_app(settings(postgres_dsn, nats_url, pages_bind="0.0.0.0:0")):
            pass
