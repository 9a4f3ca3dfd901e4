"""Series of charts, and which users may see whose names, queries and scripts."""

import re
from typing import Any

import httpx
import pytest
from hami_metrics.bootstrap import open_app
from hamicommon.errors import InvalidRequest

from bench.pages.ledger import fill
from tests.integration.metrics.pages.reviewed import check_names, open_reviewed_pages
from tests.integration.metrics.pages.running import pages, settings, text

SUBJECTS = {
    "": ("true", "true"),
    "node=n0001": ("a.node = 'n0001'", "node = 'n0001'"),
    "card={card}": ("x.device_uuid = '{card}'", "device_uuid = '{card}'"),
    "pod={pod}": ("a.pod_uid = '{pod}'", "pod_uid = '{pod}'"),
    "namespace=nlp": ("a.namespace = 'nlp'", "namespace = 'nlp'"),
}
"""Query -> its condition on grants and its condition on measurements."""


@pytest.mark.parametrize("query", SUBJECTS)
async def test_a_chart_is_what_was_granted_and_used(
    postgres_dsn: str, nats_url: str, db: Any, query: str
) -> None:
    await fill(db, nodes=2, cards=8, pods=32)
    names = {
        "card": await db.fetchval(
            "SELECT uuid FROM devices WHERE node = 'n0001' AND used_slots > 0 ORDER BY index"
        ),
        "pod": await db.fetchval("SELECT pod_uid FROM allocations ORDER BY pod_uid"),
    }
    grants, measured = (condition.format(**names) for condition in SUBJECTS[query])
    of_slices = "<>" if query.startswith(("pod", "namespace")) else "="
    granted = await db.fetchval(
        "SELECT sum(x.memory_mib) / 1024.0 FROM allocations a JOIN allocation_devices x"
        f" ON x.allocation_id = a.id WHERE a.ended_at IS NULL AND {grants}"
    )
    used = await db.fetch(
        "SELECT extract(epoch FROM bucket_start)::int AS at,"
        " sum(memory_used_sum_bytes / sample_count) / 1073741824 AS gib FROM usage_rollups"
        f" WHERE bucket_s = 300 AND pod_uid {of_slices} '' AND {measured} GROUP BY 1"
    )
    async with pages(postgres_dsn, nats_url) as (_, http):
        answer = await http.get(f"/usage.json?{query.format(**names)}")

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["memory"]["granted"][-1] == pytest.approx(float(granted), abs=0.01)
    assert found["cores"]["granted"][-1] > 0
    assert found["memory"]["used"][-1] is not None
    by_time = dict(zip(found["at"], found["memory"]["used"], strict=True))
    assert used or of_slices == "<>"
    for row in used:
        assert by_time.get(row["at"], row["gib"]) == pytest.approx(row["gib"], abs=0.01)
    assert len(found["at"]) == 73


async def test_use_shows_from_the_first_samples_on(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    await db.execute("DELETE FROM usage_rollups")
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/")
        series = (await http.get("/usage.json")).json()

    assert '<b class="soft">?</b> active' not in shown
    assert series["memory"]["used"][-1] > 0
    assert set(series["memory"]["used"][:-1]) == {None}


async def test_what_a_viewer_may_not_see_is_not_there(postgres_dsn: str, db: Any) -> None:
    await fill(db, nodes=2, cards=8, pods=32)
    pods = {
        row["namespace"]: row["pod_uid"]
        for row in await db.fetch("SELECT namespace, pod_uid FROM allocations")
    }
    other = next(name for name in pods if name != "nlp")
    asked = {
        "": 200,
        "node=n0001": 200,
        "namespace=nlp": 200,
        f"pod={pods['nlp']}": 200,
        f"namespace={other}": 404,
        f"pod={pods[other]}": 404,
        "pod=none": 404,
        "card=none": 404,
        "window=never": 400,
        "node=n0001&pod=none": 400,
    }
    async with open_reviewed_pages(postgres_dsn) as (app, _):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://pages") as http:
            assert (await http.get("/usage.json")).status_code == 401
            http.headers["Authorization"] = "Bearer ann"
            answers = {
                query: (await http.get(f"/usage.json?{query}")).status_code for query in asked
            }
    assert answers == asked


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
    async with open_reviewed_pages(postgres_dsn) as (app, paths):
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
                    # It repeats the request, and does not reveal whether the pod exists.
                    assert "or you may not see it" in shown
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
    with pytest.raises(InvalidRequest, match="callers are not authenticated"):
        async with open_app(settings(postgres_dsn, nats_url, pages_bind="0.0.0.0:0")):
            pass
