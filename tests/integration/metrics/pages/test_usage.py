"""Series of charts are what the ledger granted and what was measured, for those who may see it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bench.pages.ledger import fill
from tests.integration.metrics.pages.reviewed import reviewed
from tests.integration.metrics.pages.running import pages, text

pytestmark = pytest.mark.integration

SUBJECTS = {
    "": ("true", "true"),
    "node=n0001": ("a.node = 'n0001'", "node = 'n0001'"),
    "card={card}": ("x.device_uuid = '{card}'", "device_uuid = '{card}'"),
    "pod={pod}": ("a.pod_uid = '{pod}'", "pod_uid = '{pod}'"),
    "namespace=nlp": ("a.namespace = 'nlp'", "namespace = 'nlp'"),
}
"""Query to what it chooses among grants and among measurements."""


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
    async with reviewed(postgres_dsn) as (app, _):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://pages") as http:
            assert (await http.get("/usage.json")).status_code == 401
            http.headers["Authorization"] = "Bearer ann"
            answers = {
                query: (await http.get(f"/usage.json?{query}")).status_code for query in asked
            }
    assert answers == asked
