"""Verbs that are named questions: who, pending, usage, showback; `hamictl sql NAME` asks any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from hamicommon.errors import NotFound

from hamictl.commands.options import Answered as Form
from hamictl.commands.options import At, InNamespace, Since, Until, moment_of, since_of
from hamictl.commands.past.card_names import uuid_of
from hamictl.commands.past.claim_waits import REASON_CODE, waiting_by_claims
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.formats import TABLE, OutputFormat
from hamictl.output.records import Records, TableColumn
from hamictl.output.terminal import note
from hamictl.questions import Answered, QuestionClient
from hamictl.settings import Settings
from hamictl.target import find_target
from hamictl.view.named import records_of

ASKED_WITHIN = timedelta(minutes=10)
"""kube-scheduler tries every pod again after five minutes."""
HELD = (
    *("reserved_at", "ended_at", "namespace", "pod_name", "container", "node", "card_index"),
    *("memory_bytes", "core_ratio", "state", "reason", "pod_uid"),
)
WAITING = (
    *("namespace", "pod_name", "card_count", "memory_bytes", "core_ratio", "since_at"),
    *("last_at", "attempt_count", "ahead_count", "summary", "reason_code", "trace_id"),
)


def ask(name: str, parameters: Mapping[str, object]) -> Answered:
    """The whole answer. Ends the verb with a sentence where it can't be had."""
    answer = run(_ask(name, parameters))
    if not answer.complete:
        note(f"more than {len(answer.rows)} rows: narrow the question")
    return answer


async def _ask(name: str, parameters: Mapping[str, object]) -> Answered:
    return await QuestionClient(find_target(Settings())).ask(name, parameters)


def show(answer: Answered, output: OutputFormat, *, columns: Sequence[str] = ()) -> None:
    """Writes it; for people these columns."""
    render.write(records_of(answer, columns=columns), output)


def who(
    thing: Annotated[
        str,
        typer.Argument(
            help="a card (uuid, its beginning, or NODE/INDEX), or a node; without it all of them"
        ),
    ] = "",
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show who holds which card, or who held it then: of all cards, a node, or one card."""
    moment = moment_of(at, "--at")
    if moment is not None and (since or until):
        raise typer.BadParameter("a moment, or a time from --since to --until", param_hint="--at")
    if (since or until) and not thing:
        raise typer.BadParameter("of which card or node?", param_hint="THING")
    times = time_of(since, until)
    where = run(card_or_node(thing)) if thing else {}
    if since or until:
        show(ask("who-held-card", {**where, **times}), output, columns=HELD)
    else:
        show(ask("what-runs-where", {**where, "at": moment}), output, columns=HELD)


async def card_or_node(thing: str) -> dict[str, object]:
    """Cards of every vendor are known by `get devices`; a node is what is no card's uuid.

    Raises: NotFound where it is neither.
    """
    kind, _, name = thing.rpartition("/")
    if kind in ("node", "nodes"):
        return {"node": name}
    if kind in ("device", "devices", "card", "cards"):
        return {"card": name}
    client = QuestionClient(find_target(Settings()))
    for question, parameter in (("nodes", "node"), ("cards", "card")):
        try:
            # Without a row it is known all the same: of another time.
            await client.ask(question, {parameter: thing}, most=1)
        except NotFound:
            continue
        return {parameter: thing}
    try:
        return {"card": await uuid_of(thing)}
    except NotFound as exc:
        if " has card" in str(exc):
            raise
        raise NotFound(
            f"there is no card and no node {thing}: "
            "`hamictl get devices` has the cards that are known"
        ) from None


def pending(
    namespace: InNamespace = "",
    reason: Annotated[str, typer.Option(help="only pods with this reason code")] = "",
    at: At = "",
    output: Form = TABLE,
) -> None:
    """Show which pods wait, for what, since when, and who is before them."""
    moment = moment_of(at, "--at")
    where = {"namespace": namespace, "reason": reason, "at": moment}
    answer = ask("waiting-pods", where)
    # The past of what kube-scheduler decides is in no ledger.
    uids = {str(row["pod_uid"]) for row in answer.rows}
    by_claims = [] if moment else run(waiting_by_claims(namespace, reason, uids))
    if output.for_people and (answer.rows or by_claims):
        counts = ask("pending-reasons", {"at": moment})
        by_reason = [f"{row['reason_code']} {row['pod_count']}" for row in counts.rows]
        by_reason += [f"{REASON_CODE} {len(by_claims)}"] if by_claims else []
        note(f"{len(answer.rows) + len(by_claims)} waiting: {' · '.join(by_reason)}")
    if output.for_people and (unasked := _not_asked(answer.rows, moment)):
        note(unasked)
    show(replace(answer, rows=[*answer.rows, *by_claims]), output, columns=WAITING)


def _not_asked(rows: Sequence[Mapping[str, object]], moment: datetime | None) -> str:
    """A sentence about pods that kube-scheduler should have tried again by then; empty: none."""
    now = moment or datetime.now(UTC)
    late = [
        last_at
        for row in rows
        if now - (last_at := datetime.fromisoformat(str(row["last_at"]))) > ASKED_WITHIN
    ]
    if not late:
        return ""
    minutes = (now - max(late)) // timedelta(minutes=1)
    return (
        f"kube-scheduler has not asked about {len(late)} of them for {minutes} minutes or more: "
        "does it run? (`hamictl doctor`)"
    )


def named(name: str, given: Sequence[str], output: OutputFormat) -> None:
    """`hamictl sql NAME key=value ...`. Raises: typer.BadParameter."""
    parameters: dict[str, object] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r}: NAME=VALUE is wanted", param_hint="PARAMETERS")
        parameters[key] = value
    show(ask(name, parameters), output)


def listed(output: OutputFormat) -> None:
    """The questions that there are."""
    rows = run(_questions())
    columns = [
        TableColumn("QUESTION", lambda row: str(row["name"]), "name"),
        TableColumn("ASKS", lambda row: str(row["title"]), "title"),
        TableColumn(
            "PARAMETERS", lambda row: " ".join(f"{each['name']}=" for each in row["parameters"])
        ),
    ]
    found = Records(
        kind="Question",
        plural="questions",
        columns=columns,
        rows=rows,
        name=lambda row: f"question/{row['name']}",
    )
    render.write(found, output)


async def _questions() -> list[dict[str, object]]:
    return await QuestionClient(find_target(Settings())).questions()


def time_of(since: str, until: str) -> dict[str, datetime | None]:
    """Parameters of a question about a time."""
    return {"since": since_of(since), "until": moment_of(until, "--until")}
