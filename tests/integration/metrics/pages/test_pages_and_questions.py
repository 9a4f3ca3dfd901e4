"""A page shows what its question answers; commands and SQL are compared with the same question in
`tests/integration/db/questions/test_one_answer_everywhere.py`.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import unescape
from typing import Any

import asyncpg
from hamicommon.errors import Unavailable
from hamicommon.ledger.questions import answer

from bench.pages.ledger import fill
from tests.integration.metrics.pages.running import pages, text

Rows = Sequence[Mapping[str, Any]]
GIB = 1024**3
TRIES = 30


def texts_of(page: str) -> str:
    """Text of the page: attributes too, since labels are the grid's text."""
    return unescape(re.sub(r"\s+", " ", page))


def gib(amount: int) -> str:
    return f"{amount / GIB:.1f}".removesuffix(".0") + " GiB"


async def test_figures_of_each_page_are_those_of_its_questions(
    postgres_dsn: str, nats_url: str, db: asyncpg.Connection
) -> None:
    await fill(db, nodes=2, cards=8, pods=16, waiting=5)
    await db.execute(
        "INSERT INTO quotas (namespace, resource, limit_amount, used_amount)"
        " SELECT DISTINCT namespace, 'nvidia.com/gpumem', 65536, 4096 FROM allocations"
    )
    at = datetime.now(UTC).replace(microsecond=0)

    async def rows(name: str, **given: object) -> Rows:
        # On a machine that is busy a statement may meet its time-out: it is asked again.
        for _ in range(TRIES):
            with suppress(Unavailable):
                return (await answer(db, name, given, limit=1000)).rows
        raise AssertionError(f"{name} was never answered in time")

    held = await rows("what-runs-where", node="n0001")
    [one, *_] = held
    uuid, uid, namespace = one["device_uuid"], one["pod_uid"], one["namespace"]
    async with pages(postgres_dsn, nats_url) as (_, http):
        overview = texts_of(await text(http, "/"))
        node = texts_of(await text(http, "/nodes/n0001"))
        card = texts_of(await text(http, f"/cards/{uuid}"))
        pod = texts_of(await text(http, f"/pods/uid/{uid}"))
        pending = texts_of(await text(http, "/pending"))
        bill = texts_of(await text(http, f"/showback?at={at:%FT%TZ}"))

    cards = await rows("cards")
    taken = sum(row["held_slot_count"] > 0 for row in cards)
    assert f'<b id="held">{taken}' in overview
    sick = [row for row in cards if not row["healthy"]]
    assert sick
    assert all(row["health_reason"] in overview for row in sick)

    for row in await rows("cards", node="n0001"):
        assert f"{gib(row['held_memory_bytes']).removesuffix(' GiB')} / " in node, row
    assert held
    for row in held:
        assert f"{row['namespace']}/{row['pod_name']}" in node
    holders = await rows("who-held-card", card=uuid, since="-1d")
    assert holders
    assert all(f"{row['namespace']}/{row['pod_name']}" in card for row in holders)

    [use] = await rows("pod-usage", pod_uid=uid)
    used = "?" if use["used_memory_bytes"] is None else gib(use["used_memory_bytes"])
    assert f'<td class="number">{gib(one["memory_bytes"])}</td>' in pod
    assert f'<td class="number">{used}</td>' in pod
    [quota] = await rows("quota", namespace=namespace)
    assert (quota["used_amount"], quota["limit_amount"]) == (4096, 65536)
    assert re.search(r"quota nvidia.com/gpumem: 4.?096 of 65.?536 used", pod)
    for row in await rows("pod-steps", pod_uid=uid):
        assert row["state"] in pod

    waiting = await rows("waiting-pods")
    assert len(waiting) == 5
    assert "<b>5</b> waiting" in pending
    assert all(row["summary"] in pending for row in waiting)
    for row in await rows("pending-reasons"):
        assert f"{row['reason_code']} {row['pod_count']}" in pending

    month = {"since": at.replace(day=1, hour=0, minute=0, second=0), "until": at}
    by_owner: dict[str, int] = {}
    for row in await rows("showback", **month):
        if row["kind"] == "held":
            by_owner[row["namespace"]] = by_owner.get(row["namespace"], 0) + row["card_s"]
    shown = dict(
        re.findall(r'owner=([\w-]+)[^"]*">[\w-]+</a></th><td class="number">([\d.]+)', bill)
    )
    assert shown == {name: f"{seconds / 3600:.2f}" for name, seconds in by_owner.items()}
    [whole] = [row for row in await rows("showback-sum", **month) if row["type"] == ""]
    assert whole["agrees"]
    assert f"<b>{whole['card_s'] / 3600:.2f}</b>" in bill
