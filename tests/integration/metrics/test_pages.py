"""The operators' pages of the real service on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest
from hami_metrics.bootstrap import MetricsApp, open_app
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.pages.entry import PagesNeeds
from hami_metrics.pages.web.app import create_pages
from hami_metrics.settings import Settings
from hamicommon.access.checks import ApiCaller, Right
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.database import open_database
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.http_server import serving
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
    """The page. On a machine that is busy a statement may meet its time-out: it is asked again."""
    answer = await http.get(path, follow_redirects=True)
    if answer.status_code == 503 != status:

        async def answered() -> bool:
            nonlocal answer
            answer = await http.get(path, follow_redirects=True)
            return answer.status_code != 503

        await eventually(answered, f"{path} of a ledger that answers in time")
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
    await fill(db, nodes=3, cards=8, pods=48, waiting=3)
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

        async def fresh() -> bool:
            return "Ledger unreachable" not in await text(http, "/")

        await eventually(fresh, "the page of the present state")
        await db.execute("ALTER TABLE nodes RENAME TO nodes_away")

        async def stale() -> bool:
            shown = await text(http, "/")
            return "Ledger unreachable since" in shown and "n0001 card 0" in shown

        await eventually(stale, "the page that shows its last state")
        # What only that page reads of the ledger may be there; its state is as old as the others'.
        assert "Running pods are not affected" in await text(http, "/nodes/n0001/cards/0")
        await db.execute("ALTER TABLE nodes_away RENAME TO nodes")

        await eventually(fresh, "the page of the present state")


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


async def test_a_pod_and_what_waits_show_the_stored_decision(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2, waiting=3)
    sentence = "no card of 1 nodes has 81920 MiB free"
    [granted] = await db.fetch("SELECT namespace, pod_name FROM allocations LIMIT 1")
    async with pages(postgres_dsn, nats_url) as (_, http):
        waiting = await text(http, "/pending")
        assert "<b>3</b> waiting" in waiting
        assert sentence in waiting
        assert 'id="waiting">3</b>' in await text(http, "/")
        found = re.findall(r'href="(/pods/uid/\w+)">([\w-]+/waits-\d)', waiting)
        assert len(found) == 3
        for path, name in found:
            for address in (path, f"/pods/{name}"):
                shown = await text(http, address)
                assert sentence in shown
                assert "<b>waiting</b>" in shown
        holds = await text(http, f"/pods/{granted['namespace']}/{granted['pod_name']}")
        assert "holds its slices" in holds
        assert "hamictl explain" not in holds
        assert "knows no pod nlp/none" in await text(http, "/pods/nlp/none", 404)
        assert "Nothing waits at that moment" in await text(http, "/pending?at=2026-01-01T00:00Z")


async def test_history_steps_from_change_to_change(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=3)
    times = [row["at"] for row in await db.fetch("SELECT at FROM allocation_events ORDER BY at")]
    async with pages(postgres_dsn, nats_url) as (_, http):
        address, walked = "/history?window=1h", []
        while True:
            shown = await text(http, address)
            step = re.search(r'id="previous" href="(/history\?at=([^&]+)&[^"]*)"', shown)
            if step is None:
                break
            address = step[1].replace("&amp;", "&")
            walked.append(datetime.fromisoformat(step[2]))
    assert walked == list(reversed(times))


async def test_the_bill_adds_up_on_the_page_and_in_its_file(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):
        assert "✓ exact" in await text(http, "/showback")
        lines = (await text(http, "/showback.csv")).splitlines()
    seconds = [int(line.rsplit(",", 1)[1]) for line in lines[1:]]
    assert sum(seconds[:-1]) == seconds[-1] > 0


class Reviews:
    """`ann` may look and list the pods of nlp."""

    async def whose(self, token: str) -> ApiCaller:
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        ann = ("get questions.hami.io", "list pods in namespace nlp")
        return caller.username == "ann" and str(right) in ann


@asynccontextmanager
async def reviewed(
    postgres_dsn: str, events_connected: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[Any, tuple[str, ...]]]:
    """The application of the pages that asks who looks, and its paths."""
    async with open_database(
        PostgresSettings(dsn=SecretStr(postgres_dsn)), application="test"
    ) as ledger:
        app, paths, close = create_pages(
            PagesNeeds(
                ledger=ledger,
                reviews=Reviews(),
                proxy=False,
                show=ShowOwners.SIZES,
                secret="s",
                clock=lambda: datetime.now(UTC),
                bulkhead=Bulkhead(),
                events_connected=events_connected,
            )
        )
        try:
            yield app, paths
        finally:
            await close()


def check_names(shown: str, secrets: set[str], where: str) -> None:
    names = set(re.findall(r"(\w+)/(?:train|infer|batch|notebook|waits)-", shown))
    assert names <= {"nlp"}, where
    assert not [uid for uid in secrets if uid in shown], where


async def test_a_namespaces_user_reads_no_name_of_another_one_anywhere(
    postgres_dsn: str, db: Any
) -> None:
    await fill(db, nodes=2, cards=8, pods=32, waiting=12)
    rows = await db.fetch(
        "SELECT pod_uid, namespace, pod_name FROM allocations UNION"
        " SELECT pod_uid, namespace, pod_name FROM decisions"
    )
    secrets = {row["pod_uid"] for row in rows if row["namespace"] != "nlp"}
    other = next(row for row in rows if row["namespace"] != "nlp")
    assert {"nlp"} < {row["namespace"] for row in rows}
    async with reviewed(postgres_dsn) as (app, paths):
        uuid = await db.fetchval("SELECT uuid FROM devices WHERE index = 0")
        concrete = [
            *("/", "/pending", "/history", "/showback", "/showback.csv", f"/cards/{uuid}"),
            *("/nodes/n0001", f"/?q={other['pod_name']}", "/?at=2026-11-01T00:00Z"),
            f"/pods/{other['namespace']}/{other['pod_name']}",
            f"/pods/uid/{other['pod_uid']}",
        ]
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://pages") as http:
            assert (await http.get("/")).status_code == 401
            http.headers["Authorization"] = "Bearer ann"
            for address in concrete:
                status = 404 if "/pods/" in address else 200
                shown = await text(http, address, status)
                if status == 404:
                    # It repeats what was asked for, and that it may be there or not.
                    assert "or not one that you may see" in shown
                    continue
                check_names(shown, secrets, address)
    assert "/pods/uid/{uid}" in paths


async def until_node(http: httpx.AsyncClient, since: str, node: str) -> tuple[str, str, list[str]]:
    """The overview's stream from that version until it brings the node: the version then, the
    message, and what came before it."""
    before: list[str] = []
    async with http.stream("GET", "/live?grid=1", headers={"Last-Event-ID": since}) as answer:
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
        reviewed(postgres_dsn) as (app, _),
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
        reviewed(postgres_dsn, lambda: connected) as (app, _),
        serving(app, "127.0.0.1:0") as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
        asyncio.timeout(PATIENCE_S),
    ):
        http.headers["Authorization"] = "Bearer ann"
        async with http.stream("GET", "/live?grid=1&since=1") as answer:
            async for line in answer.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: ") else {}
                shown = " ".join(message.get("notices", ()))
                if "taken_at" in message:
                    connected = False
                if "NATS unreachable" in shown:
                    break
            assert not connected


async def test_hostile_names_are_text_on_every_page(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    evil = "<img src=x onerror=alert(1)>\"'{{7*7}}"
    await fill(db, nodes=1, cards=2, pods=2, waiting=2)
    await db.execute("UPDATE allocations SET pod_name = $1, namespace = $1, reason = $1", evil)
    await db.execute(
        "UPDATE decisions SET pod_name = $1, namespace = $1, summary = $1, message = $1,"
        " reason_counts = jsonb_build_object($1::text, 1), trace_id = $1",
        evil,
    )
    await db.execute("UPDATE devices SET type = $1, health_reason = $1, healthy = false", evil)
    uids = [row[0] for row in await db.fetch("SELECT pod_uid FROM allocations LIMIT 1")]
    uids += [row[0] for row in await db.fetch("SELECT pod_uid FROM decisions LIMIT 1")]
    async with pages(postgres_dsn, nats_url) as (_, http):
        for address in (
            *("/", "/pending", "/history", "/showback", "/nodes/n0001", "/nodes/n0001/cards/0"),
            *(f"/pods/uid/{uid}" for uid in uids),
        ):
            shown = await text(http, address)
            assert "<img" not in shown, address
            assert "{{7*7}}" in shown or "&lt;img" not in shown, address


READ = {
    "/": ("at", "q", "model", "owner", "sort", "query"),
    "/cards/{uuid}": ("at", "window", "after"),
    "/pending": ("at", "reason", "ns", "after"),
    "/history": ("at", "window", "q"),
    "/showback": ("at", "month", "basis"),
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
                    # A busy machine's statement may meet its time-out, which is no error of ours.
                    assert answer.status_code < 500 or answer.status_code == 503, (filled, query)
                    assert "<script>alert" not in answer.text
                    assert "root:" not in answer.text
        assert await db.fetchval("SELECT count(*) FROM devices") == 2


async def test_pages_on_a_network_without_an_identity_do_not_start(
    postgres_dsn: str, nats_url: str
) -> None:
    with pytest.raises(InvalidRequest, match="nobody is asked who they are"):
        async with open_app(settings(postgres_dsn, nats_url, pages_bind="0.0.0.0:0")):
            pass
