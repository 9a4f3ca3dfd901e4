"""Pages take no query and no script, and name nobody to those who may not see them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from hami_metrics.bootstrap import open_app
from hamicommon.errors import InvalidRequest

from bench.pages.ledger import fill
from tests.integration.metrics.pages.reviewed import check_names, reviewed
from tests.integration.metrics.pages.running import pages, settings, text

pytestmark = pytest.mark.integration


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
            *("/showback.json", "/nodes", "/pods", "/pods?sort=since"),
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
    await db.execute("UPDATE nodes SET node_group = $1", evil)
    uids = [row[0] for row in await db.fetch("SELECT pod_uid FROM allocations LIMIT 1")]
    uids += [row[0] for row in await db.fetch("SELECT pod_uid FROM decisions LIMIT 1")]
    async with pages(postgres_dsn, nats_url) as (_, http):
        for address in (
            *("/", "/nodes", "/nodes?sort=group", "/pods", "/pending", "/history", "/showback"),
            *("/nodes/n0001", "/nodes/n0001/cards/0"),
            *(f"/pods/uid/{uid}" for uid in uids),
        ):
            shown = await text(http, address)
            assert "<img" not in shown, address
            assert "{{7*7}}" in shown or "&lt;img" not in shown, address


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
    "/nodes": ("at", "q", "sort", "first"),
    "/pods": ("at", "q", "owner", "sort", "first"),
    "/pending": ("at", "reason", "ns", "after"),
    "/history": ("at", "window", "q"),
    "/showback": ("at", "month", "basis"),
    "/usage.json": ("at", "window", "node", "card", "pod", "namespace"),
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
