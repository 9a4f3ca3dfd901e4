"""Questions that a streaming replica answers in place of the ledger."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hami_metrics.bootstrap import open_app
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.faults.backends.postgres_pair import PostgresPair, postgres_pair
from tests.integration.metrics.service import settings, sql, until

pytestmark = pytest.mark.slow
MIGRATIONS = Path(__file__).resolve().parents[3] / "migrations"
NODE = """
WITH node AS (INSERT INTO nodes (name, inventory_at) VALUES ($1, now()) RETURNING name)
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
                     ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)
SELECT 'GPU-' || name, name, 'NVIDIA', 0, 'NVIDIA A100', 10, 81920, 100, 10, 81920, 100, true
  FROM node
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with postgres_pair(tmp_path_factory.mktemp("replica") / "pair") as found:
        upgrade.upgrade(PostgresSettings(dsn=SecretStr(str(found.primary.value.url))), MIGRATIONS)
        yield found


@asynccontextmanager
async def serve_questions(pair: PostgresPair, nats_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The service whose questions go to the standby."""
    wanted = settings(str(pair.primary.value.url), nats_url).model_copy(
        update={"questions_dsn": SecretStr(str(pair.standby.value.url))}
    )
    async with (
        open_app(wanted) as app,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}", timeout=60) as http,
    ):
        yield http


async def nodes(http: httpx.AsyncClient) -> tuple[set[str], datetime]:
    answer = await http.get("/api/v1/questions/nodes")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return {row["node"] for row in found["rows"]}, datetime.fromisoformat(found["asOf"])


async def test_a_replica_answers_as_of_what_it_has_replayed(
    pair: PostgresPair, nats_url: str
) -> None:
    async with (
        serve_questions(pair, nats_url) as http,
        sql(str(pair.primary.value.url)) as ledger,
        sql(str(pair.standby.value.url)) as replica,
    ):
        await ledger.execute(NODE, "first")

        async def is_shown() -> bool:
            return "first" in (await nodes(http))[0]

        await until("the replica to have the node", is_shown)
        assert datetime.now(UTC) - (await nodes(http))[1] < timedelta(minutes=10)

        await replica.execute("SELECT pg_wal_replay_pause()")

        async def is_paused() -> bool:
            state = await replica.fetchval("SELECT pg_get_wal_replay_pause_state()")
            return bool(state == "paused")

        await until("the replica to stop replaying", is_paused)
        await ledger.execute(NODE, "second")
        written_at = await ledger.fetchval("SELECT now()")

        names, as_of = await nodes(http)
        assert names == {"first"}
        assert as_of < written_at

        await replica.execute("SELECT pg_wal_replay_resume()")

        async def caught_up() -> bool:
            return (await nodes(http))[0] == {"first", "second"}

        await until("the replica to catch up", caught_up)
