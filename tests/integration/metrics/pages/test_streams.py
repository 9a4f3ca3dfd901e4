"""Streams bring what changed to open pages."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hamicommon.process.http_server import serving

from bench.pages.ledger import fill
from tests.integration.metrics.pages.reviewed import check_names, open_reviewed_pages
from tests.integration.metrics.pages.running import pages, text
from tests.waiting import PATIENCE_S


async def test_a_stream_brings_what_changed_and_ends_with_the_service(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=2, pods=4)

    async def events(http: httpx.AsyncClient, since: str = "") -> AsyncIterator[tuple[str, Any]]:
        async with http.stream("GET", f"/live?since={since}") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield kind, json.loads(line.removeprefix("data: "))

    async with pages(postgres_dsn, nats_url) as (_, http):
        version = re.search(r'data-version="(\d+)"', await text(http, "/"))
        assert version is not None
        stream = events(http, version[1])
        assert (await anext(stream))[0] == "hello"
        await db.execute(
            "UPDATE devices SET healthy = false, health_reason = 'xid 48', updated_at = now()"
            " WHERE node = 'n0002' AND index = 1"
        )
        async with asyncio.timeout(PATIENCE_S):
            async for kind, data in stream:
                assert kind == "changed"
                if "n0002" in data.get("nodes", {}):
                    break
        line = data["nodes"]["n0002"]
        assert "n0001" not in data["nodes"]
        assert re.search(r'class="c sick f\d[^"]*"[^>]*xid 48[^>]*>✖</a>', line)
        await stream.aclose()

    async with pages(postgres_dsn, nats_url) as (_, http):
        stream = events(http)
        assert (await anext(stream))[0] == "hello"
    # The service has ended although the stream was open.
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(httpx.HTTPError):
            assert [kind async for kind, _ in stream if kind == "hello"] == []


@pytest.mark.parametrize(
    ("older", "kind"), [(0, "changed"), (1, "resync"), (10**6, "resync"), (-(10**6), "resync")]
)
async def test_a_version_of_another_process_loads_the_page_again(
    postgres_dsn: str, nats_url: str, db: Any, older: int, kind: str
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http), asyncio.timeout(PATIENCE_S):
        found = re.search(r'data-version="(\d+)"', await text(http, "/"))
        assert found is not None
        last = str(int(found[1]) - older)
        async with http.stream("GET", "/live", headers={"Last-Event-ID": last}) as live:
            lines = live.aiter_lines()
            kinds = [line[7:] async for line in _first_events(lines, 2)]
        assert kinds == ["hello", kind]


async def _first_events(lines: AsyncIterator[str], number: int) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("event: "):
            yield line
            number -= 1
            if not number:
                return


async def until_node(http: httpx.AsyncClient, since: str, node: str) -> tuple[str, str, list[str]]:
    """The overview's stream from that version until it brings the node: the version then, the
    message, and what came before it."""
    before: list[str] = []
    async with http.stream("GET", "/live", headers={"Last-Event-ID": since}) as answer:
        assert answer.status_code == 200
        version = since
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                version = line.removeprefix("id: ")
            elif line.startswith("event: "):
                before.append(line.removeprefix("event: "))
            elif line.startswith("data: ") and node in json.loads(line[6:]).get("nodes", {}):
                return version, line[6:], before
    raise AssertionError(f"the stream ended before {node} came: {before}")


async def test_a_stream_names_nobody_elses_pods_and_goes_on_where_it_was_left(
    postgres_dsn: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=8, pods=32)
    rows = await db.fetch("SELECT pod_uid, namespace FROM allocations")
    secrets = {row["pod_uid"] for row in rows if row["namespace"] != "nlp"}
    async with (
        open_reviewed_pages(postgres_dsn) as (app, _),
        serving(app, "127.0.0.1:0") as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
        asyncio.timeout(PATIENCE_S),
    ):
        http.headers["Authorization"] = "Bearer ann"
        shown = await text(http, "/")
        found = re.search(r'data-version="(\d+)"', shown)
        assert found is not None
        version = found[1]
        # Each time the stream was away while something changed.
        for node in ("n0001", "n0002"):
            await db.execute(
                "UPDATE devices SET cordoned = true, updated_at = now() WHERE node = $1", node
            )
            version, data, kinds = await until_node(http, version, node)
            assert "resync" not in kinds, "nothing is loaded again"
            check_names(data, secrets, "stream")
            assert "cordoned" in data


async def test_an_open_page_hears_of_a_part_that_goes_though_nothing_else_changes(
    postgres_dsn: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    connected = True
    async with (
        open_reviewed_pages(postgres_dsn, lambda: connected) as (app, _),
        serving(app, "127.0.0.1:0") as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
        asyncio.timeout(PATIENCE_S),
    ):
        http.headers["Authorization"] = "Bearer ann"
        async with http.stream("GET", "/live?since=1") as answer:
            async for line in answer.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: ") else {}
                shown = " ".join(message.get("notices", ()))
                if "taken_at" in message:
                    connected = False
                if "NATS unreachable" in shown:
                    break
            assert not connected


async def test_a_node_that_gets_another_rack_is_sent_with_it(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=2, pods=4)
    await db.execute("UPDATE nodes SET node_group = 'rack-1'")
    async with pages(postgres_dsn, nats_url) as (_, http), asyncio.timeout(PATIENCE_S):
        found = re.search(r'data-version="(\d+)"', await text(http, "/"))
        assert found is not None
        await db.execute("UPDATE nodes SET node_group = 'rack-2' WHERE name = 'n0002'")
        _, data, _ = await until_node(http, found[1], "n0002")

        assert 'data-group="rack-2"' in json.loads(data)["nodes"]["n0002"]
        assert 'data-group="rack-2"' in await text(http, "/")
