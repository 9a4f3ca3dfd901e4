"""The real node lock, opened over Redis, or over a Redis that is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from hami_scheduler.adapters.postgres.housekeeping import PostgresNodeLease
from hami_scheduler.adapters.redis.node_lock import open_node_lock
from hami_scheduler.ports import NodeLock
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.ledger.database import open_database
from hamicommon.ledger.model import LockHolder
from hamicommon.settings import PostgresSettings, RedisSettings

NODE = NodeName("node-a")
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


def holder(number: int, *, token: int | None = None) -> LockHolder:
    return LockHolder(
        pod_uid=PodUid(f"pod-{number}"),
        allocation_id=AllocationId(f"00000000-0000-0000-0000-{number:012d}"),
        token=number if token is None else token,
    )


@asynccontextmanager
async def opened_lock(
    request: pytest.FixtureRequest,
    *,
    away: bool,
    done: Collection[int] = (),
    url: str | None = None,
) -> AsyncIterator[NodeLock]:
    """The real lock; for the ledger the tokens `done` need it no more."""
    url = url or (NOBODY_LISTENS if away else request.getfixturevalue("redis_url"))
    dsn = request.getfixturevalue("postgres_dsn")

    async def still_needed(held: LockHolder) -> bool:
        return held.token not in done

    async with (
        open_database(PostgresSettings(dsn=dsn), application="test") as database,
        open_node_lock(
            RedisSettings(url=url),
            PostgresNodeLease(database, lock_s=30),
            lock_s=30,
            still_needed=still_needed,
        ) as opened,
    ):
        yield opened
