"""`hamictl explain`, `history` and `sql`: why, what happened when, and any other question."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import asyncpg
import typer
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.k8s.client import open_kube_api

from hamictl.commands.about.pod_names import pod_names
from hamictl.commands.objects import Namespace
from hamictl.commands.options import Answered
from hamictl.commands.past import named as past
from hamictl.commands.runner import console, run
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.formats import TABLE, OutputFormat
from hamictl.output.presentation import shown_time
from hamictl.output.records import Records, TableColumn
from hamictl.scheduler_client import SchedulerClient
from hamictl.settings import Settings
from hamictl.target import Installation, find_target
from hamictl.view.explanation import explanation, score_text
from hamictl.view.tables import of, table

SQL_TIMEOUT_S = 60.0
NAMED = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""A question's name: one lower-case term, which no query of SQL is."""
READER = "hami_reader"
"""The role that reads all and writes nothing (docs/sql.md)."""
_NO_ROLE, _NO_MEMBER = "22023", "42501"
_ASKS_ONLY = ("explain", "show")
"""Statements that are no query, and that can't do anything else either."""


async def pod_uid(target: Installation, namespace: str, name: str) -> str:
    """The uid of a pod that exists, or of the latest one by that name in the ledger.

    Raises: NotFound when neither knows it.
    """
    if target.kubeconfig is not None:
        try:
            async with open_kube_api(target.kubeconfig) as api:
                pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
                return str(pod["metadata"]["uid"])
        except (NotFound, Unavailable):
            pass
    rows = await SchedulerClient(target.need_scheduler()).rows(
        "/v1/allocations", namespace=namespace, pod_name=name, limit="1"
    )
    if not rows:
        raise NotFound(await _why_unknown(target, namespace, name))
    return str(rows[0]["pod_uid"])


async def _why_unknown(target: Installation, namespace: str, name: str) -> str:
    """A pod that admission refused is an event of the controller that tried to create it."""
    unknown = f"pod {namespace}/{name}: neither the cluster nor the ledger knows it"
    if target.kubeconfig is None:
        return unknown
    async with open_kube_api(target.kubeconfig) as api:
        events = (await api.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
    refusals = [
        str(event.get("message", ""))
        for event in events
        if event.get("reason") == "FailedCreate"
        and name.startswith(str(event["involvedObject"].get("name", "?")))
    ]
    if refusals:
        return f"{unknown}; its controller could not create it: {refusals[-1]}"
    return (
        f"{unknown}; if admission refused it, `kubectl apply` or its controller's events "
        f"have the reason"
    )


def explain(
    pod: Annotated[str, typer.Argument(help="name of a pod", autocompletion=pod_names)],
    namespace: Namespace = "default",
    output: Answered = TABLE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="end with status 6 when the pod waits")
    ] = False,
) -> None:
    """Explain why a pod is where it is, or why it waits."""
    answer = run(_explain(pod, namespace, output))
    if exit_code and answer["outcome"] != "placed":
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


async def _explain(pod: str, namespace: str, output: OutputFormat) -> Any:
    target = find_target(Settings())
    namespace, name = pod_name(pod, namespace)
    uid = await pod_uid(target, namespace, name)
    answer = await SchedulerClient(target.need_scheduler()).get(
        f"/v1/pods/{uid}/explain", namespace=namespace, name=name
    )
    if not output.for_people:
        render.write_document(answer, output)
        return answer
    for part in explanation(answer, name=f"{namespace}/{name}"):
        # Names and texts come from the cluster: nothing in them is markup.
        console.print(part, highlight=False, markup=False)
    return answer


def history(
    pod: Annotated[
        str,
        typer.Argument(help="name of a pod, also of one that is gone", autocompletion=pod_names),
    ],
    namespace: Namespace = "default",
    output: Answered = TABLE,
) -> None:
    """Show every state that a pod's slices went through."""
    run(_history(pod, namespace, output))


async def _history(pod: str, namespace: str, output: OutputFormat) -> None:
    target = find_target(Settings())
    namespace, name = pod_name(pod, namespace)
    uid = await pod_uid(target, namespace, name)
    rows = await SchedulerClient(target.need_scheduler()).rows(f"/v1/pods/{uid}/history")
    columns = (
        TableColumn("WHEN", lambda row: shown_time(row["at"]), "at"),
        *(
            TableColumn(header, partial(_text, key), key)
            for header, key in (
                ("STATE", "state"),
                ("ATTEMPT", "attempt"),
                ("NODE", "node"),
                ("REASON", "reason"),
                ("BY", "actor"),
            )
        ),
        TableColumn("SCORE", _score, "score"),
    )
    name_of = f"pod/{namespace}/{name}"
    shown = Records(
        kind="Change", plural="changes", columns=columns, rows=rows, name=lambda row: name_of
    )
    render.write(shown, output)


def _score(row: Mapping[str, Any]) -> str:
    """Where the node was chosen; a grant that was adopted or restored has no policy."""
    policy = (row.get("policy") or {}).get("node")
    chosen = row["state"] == "reserved" and row["previous_state"] is None and policy
    return score_text(str(policy), row["score"]) if chosen else ""


def _text(key: str, row: Mapping[str, Any]) -> str:
    return of(row[key])


def pod_name(given: str, namespace: str) -> tuple[str, str]:
    """(namespace, name) of `train`, `pod/train`, `team-a/train` or `pod/team-a/train`."""
    own, _, name = given.removeprefix("pod/").removeprefix("pods/").rpartition("/")
    return own or namespace, name


def sql(
    query: Annotated[
        str,
        typer.Argument(
            help="name of a question, or one SQL query, which is run as hami_reader; "
            "without it: the questions that there are"
        ),
    ] = "",
    parameters: Annotated[
        list[str] | None, typer.Argument(help="of a question, as in memory=8Gi")
    ] = None,
    answered: Answered = TABLE,
) -> None:
    """Ask a named question (without a name: which there are), or the ledger itself in SQL."""
    if not query:
        past.listed(answered)
        return
    if NAMED.fullmatch(query):
        past.named(query, parameters or [], answered)
        return
    if parameters:
        raise typer.BadParameter("a query has none: they are for named questions")
    output = answered.form.value
    if output not in ("table", "wide", "json", "csv"):
        raise typer.BadParameter("of a query: table, json or csv", param_hint="--output")
    columns, rows = run(_query(query))
    if output == "json":
        console.print_json(
            data=[dict(zip(columns, row, strict=True)) for row in rows], default=_plain
        )
    elif output == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([_plain(value) for value in row] for row in rows)
    else:
        console.print(table("", columns, ([of(_plain(value)) for value in row] for row in rows)))


async def _query(query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    async with ledger_reader() as connection:
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


@asynccontextmanager
async def ledger_reader() -> AsyncIterator[asyncpg.Connection[Any]]:
    """One read-only transaction as `hami_reader`, which sees one moment of the ledger.

    Raises: Unavailable when the ledger does not answer; InvalidRequest with what Postgres refused.
    """
    dsn = find_target(Settings()).need_postgres()
    try:
        connection = await asyncpg.connect(
            dsn, timeout=5, server_settings={"default_transaction_read_only": "on"}
        )
    except (OSError, TimeoutError, asyncpg.PostgresError) as exc:
        raise Unavailable(f"Postgres: {exc or type(exc).__name__}") from exc
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
    """The query has the rights of `hami_reader`, with any login.

    Raises: InvalidRequest with what an administrator does about it.
    """
    try:
        await connection.execute(f"SET ROLE {READER}")
    except asyncpg.PostgresError as exc:
        login = await connection.fetchval("SELECT session_user")
        if exc.sqlstate == _NO_ROLE:
            raise InvalidRequest(
                f"SQL: this database has no role {READER}, as which queries run: an administrator "
                f"creates it (docs/sql.md)"
            ) from exc
        if exc.sqlstate == _NO_MEMBER:
            raise InvalidRequest(
                f"SQL: {login} may not query as {READER}: GRANT {READER} TO {login}"
            ) from exc
        raise


def _plain(value: Any) -> Any:
    return value.isoformat(sep=" ") if isinstance(value, datetime) else _number_or_text(value)


def _number_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool | str) else str(value)
