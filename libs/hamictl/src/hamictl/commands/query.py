"""`hamictl sql`: run a named question, or a read-only SQL query on the ledger."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import asyncpg
import typer
from hamicommon.errors import InvalidRequest, Unavailable

from hamictl.commands import named as past
from hamictl.commands.options import Answered
from hamictl.commands.runner import console, run
from hamictl.exit_codes import WrongUsage
from hamictl.output import render
from hamictl.output.records import TABLE, text_of
from hamictl.output.terminal import emit
from hamictl.scheduler_client import closed_forward
from hamictl.target import find_target
from hamictl.view.lists import table

SQL_TIMEOUT_S = 60.0
NAMED = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
"""Pattern of a question's name: one lower-case term, which is no valid SQL query."""
READER = "hami_reader"
"""Postgres role that may read everything and write nothing (docs/sql.md)."""
_NO_ROLE, _NO_MEMBER = "22023", "42501"
_ASKS_ONLY = ("explain", "show")
"""First terms of statements that are no query but only read."""
_QUERIES = ("select", "with", "values", "table")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*", re.DOTALL)
_TERM = re.compile(r"\w+")


def sql(
    query: Annotated[
        str,
        typer.Argument(
            help="name of a predefined question, or one SQL query, run as the Postgres role "
            "hami_reader (default: list the questions)"
        ),
    ] = "",
    parameters: Annotated[
        list[str] | None,
        typer.Argument(help="parameters of the named question, such as memory=8Gi"),
    ] = None,
    answered: Answered = TABLE,
) -> None:
    """Run a named question, list them, or query the ledger in SQL."""
    if not query:
        past.list_questions(answered)
        return
    if NAMED.fullmatch(query):
        past.run_question(query, parameters or [], answered)
        return
    if parameters:
        raise typer.BadParameter("a SQL query has no parameters: they are for named questions")
    output = answered.form.value
    if output not in ("table", "wide", "json", "csv"):
        raise typer.BadParameter("a SQL query has table, json and csv", param_hint="--output")
    columns, rows = run(_query(query))
    plain = [[_plain(value) for value in row] for row in rows]
    if output == "json":
        emit(render.escaped_json([dict(zip(columns, row, strict=True)) for row in plain]))
    elif output == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(plain)
        emit(text.getvalue())
    else:
        console.print_whole(
            table("", columns, ([text_of(value) for value in row] for row in plain))
        )


async def _query(query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    begins = first_term(query)
    if begins not in (*_QUERIES, *_ASKS_ONLY):
        raise WrongUsage(refusal(query, begins))
    async with ledger_reader() as connection:
        # Not by its first term: who nests comments hides a statement behind them.
        if not query.lstrip().lower().startswith(_ASKS_ONLY):
            # A cursor takes a query and nothing else: COPY and DO would run programs on the
            # server where the login may, read-only or not. Prepared: it is one statement.
            declared = f"DECLARE hamictl NO SCROLL CURSOR FOR {query}"
            await (await connection.prepare(declared)).fetch(timeout=SQL_TIMEOUT_S)
            query = "FETCH ALL FROM hamictl"
        statement = await connection.prepare(query, timeout=SQL_TIMEOUT_S)
        records = await statement.fetch(timeout=SQL_TIMEOUT_S)
        return [attribute.name for attribute in statement.get_attributes()], [
            tuple(record) for record in records
        ]


def first_term(query: str) -> str:
    """Return the first term in lower case, after comments and brackets; empty if there is none."""
    begins = _COMMENTS.match(query)
    found = _TERM.match(query, 0 if begins is None else begins.end())
    return "" if found is None else found[0].lower()


def refusal(query: str, begins: str) -> str:
    """Return the message for a statement that is no query, with the right command."""
    known = ", ".join(term.upper() for term in (*_QUERIES, *_ASKS_ONLY))
    what = f"{begins.upper()[:40]} is refused" if begins else "this is not a query"
    return (
        f"SQL: {what}, as only queries run here. A query begins with {known}; "
        "`hamictl sql` lists the named questions"
    )


@asynccontextmanager
async def ledger_reader() -> AsyncIterator[asyncpg.Connection[Any]]:
    """Open a read-only transaction as `hami_reader`, which sees one moment of the ledger.

    Raises: Unavailable when the ledger does not answer; InvalidRequest with what Postgres refused.
    """
    target = find_target()
    dsn = target.need_postgres()
    try:
        connection = await asyncpg.connect(
            dsn, timeout=5, server_settings={"default_transaction_read_only": "on"}
        )
    except (OSError, TimeoutError, asyncpg.PostgresError) as exc:
        forward = "" if target.local else closed_forward(dsn, exc)
        raise Unavailable(f"Postgres: {exc or type(exc).__name__}{forward}") from exc
    except ValueError as exc:
        raise InvalidRequest(f"HAMI_POSTGRES_DSN is not usable: {exc}") from exc
    try:
        await _become_reader(connection)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            yield connection
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        raise InvalidRequest(f"SQL: {exc}") from exc
    except TimeoutError as exc:
        raise Unavailable(f"Postgres: no answer within {SQL_TIMEOUT_S:g} s") from exc
    finally:
        await connection.close(timeout=5)


async def _become_reader(connection: asyncpg.Connection[Any]) -> None:
    """Give the query the rights of `hami_reader`, whatever the login.

    Raises: InvalidRequest with what an administrator does about it.
    """
    try:
        await connection.execute(f"SET ROLE {READER}")
    except asyncpg.PostgresError as exc:
        login = await connection.fetchval("SELECT session_user")
        if exc.sqlstate == _NO_ROLE:
            raise InvalidRequest(
                f"SQL: this database lacks the role {READER}, as which queries run: an "
                "administrator creates it (docs/sql.md)"
            ) from exc
        if exc.sqlstate == _NO_MEMBER:
            raise InvalidRequest(
                f"SQL: {login} may not query as {READER}: GRANT {READER} TO {login}"
            ) from exc
        raise


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return _number_or_text(_ranges(value))


def _ranges(value: Any) -> Any:
    """Convert a range to text with bounds in ISO 8601; return other values unchanged."""
    if isinstance(value, asyncpg.Range):
        return range_text(value)
    if isinstance(value, list) and value and all(isinstance(one, asyncpg.Range) for one in value):
        return f"{{{','.join(map(range_text, value))}}}"
    return value


def range_text(held: asyncpg.Range) -> str:
    """Return `[2026-11-26T13:27:09Z,2026-11-26T13:29:42Z)`; an open bound is empty."""
    if held.isempty:
        return "empty"
    begins = "[" if held.lower_inc else "("
    ends = "]" if held.upper_inc else ")"
    return f"{begins}{_bound_text(held.lower)},{_bound_text(held.upper)}{ends}"


def _bound_text(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return "" if value is None else str(value)


def _number_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool | str) else str(value)
