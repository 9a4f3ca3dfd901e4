"""The ledger's server shows a scheduler's connections."""

from __future__ import annotations

from typing import Any

import pytest
from hami_metrics.pages.readings import SCHEDULER, read_schedulers
from hamicommon.ledger.connection import connect
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

pytestmark = pytest.mark.integration


async def test_connections_are_counted_and_the_last_use_is_known(
    postgres_dsn: str, db: Any
) -> None:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    before = await read_schedulers(db)
    assert (before.connections, before.used_at) == (0, None)
    scheduler = await connect(settings, application=SCHEDULER)
    try:
        first = await read_schedulers(db)
        await scheduler.fetchval("SELECT 1")
        second = await read_schedulers(db)
    finally:
        await scheduler.close()

    assert first.connections == 1
    assert first.used_at is not None
    assert second.used_at is not None
    assert second.used_at > first.used_at
