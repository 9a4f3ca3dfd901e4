"""One ledger, one moment: a page, the command beside it and plain SQL have the same numbers."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from hamictl.__main__ import app as hamictl
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner

from bench.pages.ledger import fill
from tests.integration.metrics.pages.running import pages, text

GIB = 1024**3
TRIES = 30
HELD_AT = """
SELECT count(DISTINCT device_uuid) FROM allocations_at($1)
"""
NODE_AT = """
SELECT device_uuid, sum(memory_mib) / 1024.0 AS gib FROM allocations_at($1) WHERE node = 'n0002'
 GROUP BY device_uuid
"""
HOLDERS_AT = "SELECT count(DISTINCT pod_uid) FROM allocations_at($1) WHERE device_uuid = $2"
WAITING_AT = """
SELECT count(DISTINCT pod_uid) FROM decisions
 WHERE outcome <> 'placed' AND at <= $1 AND wait_ended_at > $1
"""
BILL = """
SELECT namespace, sum(memory_us) / 1e6 / 3600 AS hours
  FROM showback_between($1, $2) WHERE kind = 'held' GROUP BY namespace
"""


class Seen:
    """The three ways to ask about one moment."""

    def __init__(self, db: Any, http: httpx.AsyncClient, environment: dict[str, str]) -> None:
        self.db, self._http, self._environment = db, http, environment
        self.at = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=2)

    async def page(self, path: str) -> str:
        shown = await text(self._http, f"{path}?at={self.at:%FT%TZ}")
        return unescape(re.sub(r"\s+", " ", shown))

    async def command(self, *argv: str) -> Any:
        asked = (*argv, "--at", f"{self.at:%FT%TZ}", "-o", "json")
        for _ in range(TRIES):
            done = await asyncio.to_thread(
                CliRunner().invoke, hamictl, asked, env=self._environment
            )
            # On a machine that is busy a statement may meet its time-out: it is asked again.
            if done.exit_code != ExitCode.UNREACHABLE:
                break
        assert done.exit_code == ExitCode.DONE, done.output
        return json.loads(done.stdout)


@asynccontextmanager
async def three_views(
    postgres_dsn: str, nats_url: str, db: asyncpg.Connection, folder: Path
) -> AsyncIterator[Seen]:
    await fill(db, nodes=3, cards=8, pods=48, waiting=5)
    async with pages(postgres_dsn, nats_url) as (running, http):
        environment = {
            "HAMI_FOLDER": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "HAMI_METRICS_URL": f"http://127.0.0.1:{running.port}",
        }
        yield Seen(db, http, environment)


async def test_a_page_a_command_and_sql_have_the_same_numbers(
    postgres_dsn: str, nats_url: str, db: asyncpg.Connection, tmp_path: Path
) -> None:
    async with three_views(postgres_dsn, nats_url, db, tmp_path) as ask:
        await _overview(ask)
        await _node(ask)
        await _card_and_pod(ask)
        await _waiting(ask)
        await _showback(ask)


async def _overview(ask: Seen) -> None:
    shown = re.search(r'<b id="held">(\d+)</b>', await ask.page("/"))
    cards = (await ask.command("get", "devices"))["items"]
    assert shown is not None
    assert int(shown[1]) == sum(card["held_slot_count"] > 0 for card in cards)
    assert int(shown[1]) == await ask.db.fetchval(HELD_AT, ask.at)


async def _node(ask: Seen) -> None:
    shown = await ask.page("/nodes/n0002")
    in_sql = {row["device_uuid"]: float(row["gib"]) for row in await ask.db.fetch(NODE_AT, ask.at)}
    cards = (await ask.command("describe", "node", "n0002"))["cards"]
    rows = re.findall(r'/cards/(GPU-\w+)\?.*?<td class="number">([\d.]+) / ', shown)
    assert {uuid: float(gib) for uuid, gib in rows} == {
        card["device_uuid"]: card["held_memory_bytes"] / GIB for card in cards
    }
    assert {uuid: float(gib) for uuid, gib in rows if float(gib)} == in_sql


async def _card_and_pod(ask: Seen) -> None:
    one = await ask.db.fetchrow(
        "SELECT device_uuid, pod_uid, memory_mib FROM allocations_at($1) WHERE node = 'n0002'"
        " ORDER BY device_uuid, pod_uid LIMIT 1",
        ask.at,
    )
    shown = re.search(r"Held by <b>(\d+)</b> then", await ask.page(f"/cards/{one['device_uuid']}"))
    holders = (await ask.command("who", one["device_uuid"]))["items"]
    assert shown is not None
    assert int(shown[1]) == len({row["pod_uid"] for row in holders})
    assert int(shown[1]) == await ask.db.fetchval(HOLDERS_AT, ask.at, one["device_uuid"])

    pod = await ask.page(f"/pods/uid/{one['pod_uid']}")
    [held] = [row for row in holders if row["pod_uid"] == one["pod_uid"]]
    assert held["memory_bytes"] == one["memory_mib"] * 1024**2
    assert f'<td class="number">{one["memory_mib"] / 1024:g} GiB</td>' in pod


async def _waiting(ask: Seen) -> None:
    shown = re.search(r"<b>(\d+)</b> waiting", await ask.page("/pending"))
    waiting = (await ask.command("pending"))["items"]
    assert shown is not None
    assert int(shown[1]) == len(waiting) == await ask.db.fetchval(WAITING_AT, ask.at)
    assert waiting


async def _showback(ask: Seen) -> None:
    shown = await ask.page("/showback")
    rows = dict(
        re.findall(r'owner=([\w-]+)[^"]*">[\w-]+</a></th><td class="number">([\d.]+)', shown)
    )
    lines = [row for row in (await ask.command("showback"))["items"] if row["kind"] == "held"]
    month = ask.at.replace(day=1, hour=0, minute=0, second=0)
    in_sql = {
        row["namespace"]: float(row["hours"]) for row in await ask.db.fetch(BILL, month, ask.at)
    }
    assert rows == {row["namespace"]: f"{row['card_s'] / 3600:.2f}" for row in lines}
    assert rows
    # Whole seconds of the bill beside the microseconds that they are made of.
    assert {name: float(hours) for name, hours in rows.items()} == {
        name: pytest.approx(hours, abs=0.01) for name, hours in in_sql.items()
    }
