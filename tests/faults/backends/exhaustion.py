"""Backends that give nothing more: locked tables, no connection left; and many calls at once."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import asyncpg
import httpx
from hamicommon.k8s.types import Json

from tests.e2e.system import System
from tests.faults.replicas.extender import CALL_TIMEOUT_S
from tests.faults.stage import since


async def filter_all(url: str, pods: Sequence[Json]) -> list[tuple[str, float]]:
    """(the error, seconds until it came) of each call, all made at once."""
    async with httpx.AsyncClient(timeout=CALL_TIMEOUT_S) as client:

        async def ask(pod: Json) -> tuple[str, float]:
            began_s = time.monotonic()
            body = {"pod": pod, "nodenames": ["node-0", "node-1"]}
            answer = await client.post(f"{url}/filter", json=body)
            assert answer.status_code == 200
            return str(answer.json()["Error"]), since(began_s)

        return list(await asyncio.gather(*(ask(pod) for pod in pods)))


@contextmanager
def locked(system: System, table: str) -> Iterator[None]:
    """Everybody may read the table, nobody else may write to it."""

    async def begin(dsn: str) -> asyncpg.Connection:
        connection = await asyncpg.connect(dsn)
        await connection.execute(f"BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE")
        return connection

    with asyncio.Runner() as runner:
        connection = runner.run(begin(str(system.described["postgres_dsn"])))
        try:
            yield
        finally:
            runner.run(connection.close())


@contextmanager
def no_new_connection(system: System) -> Iterator[None]:
    """Redis ends all connections but ours, and takes no other."""
    client = system.redis()
    before = client.config_get("maxclients")["maxclients"]
    client.config_set("maxclients", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_kill_filter(_type="pubsub", skipme=True)
    try:
        yield
    finally:
        client.config_set("maxclients", before)


@contextmanager
def every_connection(system: System) -> Iterator[None]:
    """Takes all that Postgres gives."""
    dsn = str(system.described["postgres_dsn"])
    with asyncio.Runner() as runner:
        held = runner.run(_all_of(dsn))
        yield
        for connection in held:
            connection.terminate()


async def _all_of(dsn: str) -> list[asyncpg.Connection]:
    held = []
    while True:
        try:
            held.append(await asyncpg.connect(dsn))
        except asyncpg.TooManyConnectionsError:
            return held
