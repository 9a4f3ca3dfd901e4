"""Calls of operators: recorded before they are executed, and never changed or removed."""

from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from hami_scheduler.activity import Activity
from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal
from hami_scheduler.api.operator_access import OperatorAccess, Role, by_token
from hami_scheduler.ports.ledger import CallOutcome, OperatorCall
from hamicommon.access.checks import Access, ApiCaller, Right
from hamicommon.errors import Conflict, Unavailable
from hamicommon.ledger.database import Database, open_database
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send


class Reviews:
    """Tokens are names; those that begin with `op` may operate."""

    async def whose(self, token: str) -> ApiCaller:
        return ApiCaller(username=token, groups=["system:authenticated", "g\n" * 500])

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return right == Role.READ.value or caller.username.startswith("op")


class App:
    """Gives the set answer; counts its calls."""

    def __init__(self, status: int = 200, body: bytes = b"{}") -> None:
        self.status, self.body, self.read = status, body, b""
        self.calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        more = True
        while more:
            message = await receive()
            self.read += message.get("body", b"")
            more = message.get("more_body", False)
        if self.status == 0:
            raise ZeroDivisionError("secret detail")
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as opened:
        await opened.fetch("SELECT count(*) FROM operator_calls")
        yield opened


async def call(
    database: Database, app: App, path: str, *, token: str = "op-ann", body: bytes = b""
) -> httpx.Response:
    served = OperatorAccess(
        app, by_token(Access(Reviews())), Activity(), PostgresCallJournal(database)
    )
    transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://scheduler") as client:
        headers = {"Authorization": f"Bearer {token}"}
        return await client.post(path, content=body, headers=headers)


async def list_calls(database: Database) -> list[asyncpg.Record]:
    """All but those of migrations."""
    return await database.fetch("SELECT * FROM operator_calls WHERE verb <> 'migrate' ORDER BY id")


async def test_a_call_is_there_with_who_what_and_what_became_of_it(database: Database) -> None:
    app = App()
    body = b'{"apply": true, "nodes": ["n1"]}'
    assert (await call(database, app, "/v1/adopt", body=body)).status_code == 200

    [row] = await list_calls(database)
    assert (row["username"], row["verb"], row["object"], row["outcome"]) == (
        "op-ann",
        "adopt",
        body.decode(),
        "done",
    )
    assert (row["source"], row["address"]) == ("token", "127.0.0.1")
    assert row["ended_at"] >= row["at"]
    assert all(len(group) <= 128 and group.isprintable() for group in row["groups"])
    assert app.read == body


@pytest.mark.parametrize("status", [409, 500, 0])
async def test_a_call_that_fails_is_shown_as_failed(database: Database, status: int) -> None:
    await call(database, App(status, b'{"error": "no"}'), "/v1/dead-letters/17/send")

    [row] = await list_calls(database)
    assert (row["verb"], row["object"], row["outcome"]) == ("send-dead-letter", "17", "failed")
    answered = "it ended without an answer" if status == 0 else '{"error": "no"}'
    assert row["message"] == answered


async def test_who_may_not_is_written_once_an_hour_and_counted(database: Database) -> None:
    app = App()
    for number in range(5):
        answer = await call(database, app, f"/v1/dead-letters/{number}/send", token="mallory")
        assert answer.status_code == 403

    [row] = await list_calls(database)
    assert (row["username"], row["outcome"], row["repeat_count"], app.calls) == (
        "mallory",
        "refused",
        5,
        0,
    )


async def test_nothing_is_carried_out_that_can_not_be_written_down(database: Database) -> None:
    class Away(PostgresCallJournal):
        async def begin(self, call: OperatorCall) -> int:
            raise Unavailable("Postgres is not available")

    app = App()
    served = OperatorAccess(app, by_token(Access(Reviews())), Activity(), Away(database))
    transport = httpx.ASGITransport(app=served)
    async with httpx.AsyncClient(
        transport=transport,
        base_url="https://scheduler",
        headers={"Authorization": "Bearer op-ann"},
    ) as client:
        assert (await client.post("/v1/adopt", content=b"{}")).status_code == 503
        assert app.calls == 0
        assert (await client.get("/v1/devices")).status_code == 200
        assert (await client.post("/v1/simulate", content=b"{}")).status_code == 200


async def test_a_large_body_reaches_its_reader_whole(database: Database) -> None:
    app = App()
    body = b"x" * 3_000_000

    await call(database, app, "/v1/adopt", body=body)

    assert app.read == body
    assert len((await list_calls(database))[0]["object"]) <= 1024


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE operator_calls SET username = 'bob'",
        "UPDATE operator_calls SET outcome = 'begun'",
        "UPDATE operator_calls SET object = ''",
        "UPDATE operator_calls SET at = now() - interval '1 year'",
        "DELETE FROM operator_calls",
        "TRUNCATE operator_calls",
    ],
)
async def test_nobody_changes_or_removes_a_call(database: Database, statement: str) -> None:
    log = PostgresCallJournal(database)
    number = await log.begin(OperatorCall(user="ann", address="", verb="adopt", object="{}"))
    await log.end(number, CallOutcome.DONE, "")
    before = await list_calls(database)

    with pytest.raises(Conflict, match="append-only"):
        async with database.connection() as connection:
            await connection.execute(statement)

    assert [tuple(row) for row in await list_calls(database)] == [tuple(row) for row in before]


async def test_who_migrated_the_schema_is_there(database: Database) -> None:
    rows = await database.fetch("SELECT * FROM operator_calls WHERE verb = 'migrate' ORDER BY id")

    assert {row["username"] for row in rows} == {"hami"}
    assert rows[-1]["object"].startswith("upgrade 00")
