"""PostgreSQL, Redis and NATS for the tests: embedded, or in containers (`--servers=docker`).

Both kinds give the fixtures of `tests/conftest.py` the same: a PostgreSQL server to create
databases in, a Redis to flush, and a NATS without streams of other tests.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import redis
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.binaries import postgres_home
from hamilocal.servers.data import nats, postgres, valkey
from pydantic import SecretStr

from tests.processes import running

REPOSITORY = Path(__file__).resolve().parents[1]
_SQL_TIMEOUT_S = 30.0
_MEMORY = Path("/dev/shm")
_MIN_MEMORY_BYTES = 4 << 30
"""Three workers' data folders and the whole systems beside them hold a quarter of it."""


class Servers(Protocol):
    """Source of the servers of this test session."""

    def postgres(self) -> str:
        """The DSN of the server's own database; one server per session."""

    def redis(self) -> str:
        """The URL of an empty Redis; one server per session."""

    def nats(self) -> contextlib.AbstractContextManager[str]:
        """The URL of a NATS with JetStream and no streams."""


class EmbeddedServers:
    """Servers from the wheels, started on first use and stopped when the session closes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._postgres: str | None = None
        self._redis: str | None = None
        self._numbers = itertools.count()

    def postgres(self) -> str:
        if self._postgres is None:
            plan = postgres.prepare(self._folder / "postgres", durable=False)
            self._postgres = self._run(plan)
        return self._postgres

    def redis(self) -> str:
        if self._redis is None:
            self._redis = self._run(valkey.prepare(self._folder / "redis"))
        flush(self._redis)
        return self._redis

    @contextmanager
    def nats(self) -> Iterator[str]:
        plan = nats.prepare(self._folder / f"nats-{next(self._numbers)}")
        with running(plan, die_with_parent=True) as server:
            yield server.value.url
        shutil.rmtree(plan.cwd, ignore_errors=True)

    def _run(self, plan: Any) -> str:
        return self._stack.enter_context(running(plan, die_with_parent=True)).value.url


@contextmanager
def embedded_servers() -> Iterator[EmbeddedServers]:
    """Run servers in a folder open to every user, as PostgreSQL may run as user nobody."""
    folder = Path(tempfile.mkdtemp(prefix="hami-tests-", dir=memory_folder()))
    folder.chmod(0o755)
    try:
        with ExitStack() as stack:
            yield EmbeddedServers(folder, stack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Databases:
    """Databases that live for one test, copied from a template that was created once.

    While a test has its database, the next one is copied and the previous one is dropped.
    """

    def __init__(self, server_dsn: str) -> None:
        self._server_dsn = server_dsn
        self._templates: set[str] = set()
        self._numbers = itertools.count()
        self._copies = ThreadPoolExecutor(max_workers=1, thread_name_prefix="databases")
        self._next: dict[str, Future[str]] = {}
        """By template: an unused copy."""
        self._left: list[str] = []
        """Databases of tests that have ended."""

    @contextmanager
    def database(
        self, template: str = "template0", fill: Callable[[str], None] | None = None
    ) -> Iterator[str]:
        """The DSN of a new copy of `template`, which `fill(dsn)` makes when first asked for."""
        if fill is not None and template not in self._templates:
            execute(self._server_dsn, f'CREATE DATABASE "{template}" TEMPLATE template0')
            fill(self._dsn(template))
            self._templates.add(template)
        ready = self._next.pop(template, None)
        name = self._copy(template, ()) if ready is None else ready.result()
        left, self._left = tuple(self._left), []
        self._next[template] = self._copies.submit(self._copy, template, left)
        try:
            yield self._dsn(name)
        finally:
            self._left.append(name)

    def close(self) -> None:
        """Wait for running copies, after which the server may stop."""
        self._copies.shutdown(cancel_futures=True)

    def _copy(self, template: str, left: Sequence[str]) -> str:
        """A new database; those in `left` are dropped first."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        execute(
            self._server_dsn,
            *(f'DROP DATABASE IF EXISTS "{old}" WITH (FORCE)' for old in left),
            # Faster than through the log, where nothing is synced to disk.
            f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy',
        )
        return name

    def _dsn(self, database: str) -> str:
        return urlunsplit(urlsplit(self._server_dsn)._replace(path=f"/{database}"))


def memory_folder() -> Path | None:
    """A folder in memory for data folders; None, the usual temporary one, if it has no room.

    On a disk, copying a database and dropping it costs ten times as much processor time.
    """
    if not _MEMORY.is_dir():
        return None
    found = os.statvfs(_MEMORY)
    has_room = found.f_bavail * found.f_frsize >= _MIN_MEMORY_BYTES
    return _MEMORY if has_room and not found.f_flag & os.ST_NOEXEC else None


def execute(dsn: str, *statements: str) -> None:
    """Run SQL statements one by one; without a new process, so cheap enough for each test."""

    async def run() -> None:
        connection = await asyncpg.connect(dsn, timeout=_SQL_TIMEOUT_S)
        try:
            for statement in statements:
                await connection.execute(statement, timeout=_SQL_TIMEOUT_S)
        finally:
            await connection.close(timeout=_SQL_TIMEOUT_S)

    in_thread(lambda: asyncio.run(run()))


def psql(dsn: str, *statements: str) -> str:
    """Run SQL statements one by one with psql; return unaligned rows without a header."""
    commands = [part for statement in statements for part in ("-c", statement)]
    done = subprocess.run(
        [postgres_home() / "bin" / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *commands, dsn],
        capture_output=True,
        text=True,
        timeout=_SQL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{'; '.join(statements)}: {done.stderr}"
    return done.stdout.strip()


def migrate(dsn: str) -> None:
    """Bring a database to the newest schema, as `hamictl up` does."""
    settings = PostgresSettings(dsn=SecretStr(dsn))
    in_thread(lambda: upgrade.upgrade(settings, REPOSITORY / "migrations"))


def flush(url: str) -> None:
    """Empty the Redis behind `url`."""
    with redis.Redis.from_url(url) as client:
        client.flushall()


def delete_streams(url: str) -> None:
    """Delete every JetStream stream of the NATS behind `url`."""

    async def delete() -> None:
        from nats import connect

        client = await connect(url)
        try:
            stream = client.jetstream()
            for info in await stream.streams_info():
                await stream.delete_stream(str(info.config.name))
        finally:
            await client.close()

    in_thread(lambda: asyncio.run(delete()))


def in_thread(work: Callable[[], object]) -> None:
    """Run blocking work that starts its own event loop, away from the loop of the test runner."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(exc)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
