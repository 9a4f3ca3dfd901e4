"""Commands that run named questions: who, pending, and `hamictl sql NAME` for any other.

Cards are named as people write them: a uuid, the beginning of one, or NODE/INDEX. Pods that wait
and never came to /filter are from the scheduler: the ledger has no decision about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from hamicommon.errors import HamiError, NotFound

from hamictl.commands.options import Answered as Form
from hamictl.commands.options import At, InNamespace, Since, Until, moment_of, since_of
from hamictl.commands.runner import run
from hamictl.exit_codes import WrongUsage, wrong_usage
from hamictl.output import render
from hamictl.output.records import (
    TABLE,
    OutputFormat,
    Records,
    Row,
    TableColumn,
    plain_column,
)
from hamictl.output.terminal import note
from hamictl.questions import QuestionAnswer, QuestionClient
from hamictl.scheduler_client import SchedulerClient
from hamictl.target import find_target
from hamictl.view.named import records_of

SHORTEST = 4
"""Minimum characters by which a uuid may be abbreviated."""
NAMED = 3
"""Maximum number of cards that the error for an ambiguous abbreviation names."""


async def uuid_of(name: str) -> str:
    """Return the uuid of the present card with this name.

    Raises: NotFound, WrongUsage where several begin so, Forbidden, Unavailable.
    """
    client = QuestionClient(find_target())
    node, slash, index = name.rpartition("/")
    where = {"node": node} if slash else {}
    return chosen((await client.ask("cards", where)).rows, name, index if slash else "")


async def uuid_or_name(name: str) -> str:
    """Return the uuid of a present card, otherwise the name: the uuid of a former card.

    Raises: InvalidRequest, Forbidden, Unavailable.
    """
    try:
        return await uuid_of(name)
    except NotFound:
        return name


def chosen(cards: Sequence[Row], name: str, index: str) -> str:
    """Return the one card with this index or uuid, or whose uuid begins so.

    Raises: as `uuid_of`.
    """
    if index:
        found = [str(row["device_uuid"]) for row in cards if str(row["card_index"]) == index]
    elif any(str(row["device_uuid"]) == name for row in cards):
        found = [name]
    elif len(name) < SHORTEST:
        found = []
    else:
        found = [str(row["device_uuid"]) for row in cards if _begins(row, name)]
    if not found and index and cards:
        node = name.rpartition("/")[0]
        raise NotFound(f"card {name} not found: {node} has {_indices(cards)}")
    if not found:
        raise NotFound(f"card {name} not found; `hamictl get devices` lists all")
    if len(found) > 1:
        some = ", ".join(sorted(found)[:NAMED])
        raise WrongUsage(
            f"{name} matches {len(found)} cards, such as {some}: give more of the uuid"
        )
    return found[0]


def _indices(cards: Sequence[Row]) -> str:
    """Return `cards 0 to 3`, or all indices if some are missing."""
    known = sorted(int(row["card_index"]) for row in cards)
    if len(known) == 1:
        return f"card {known[0]} only"
    if known == list(range(known[0], known[-1] + 1)):
        return f"cards {known[0]} to {known[-1]}"
    return f"cards {', '.join(map(str, known))}"


def _begins(row: Row, name: str) -> bool:
    return str(row["device_uuid"]).lower().startswith(name.lower())


UNKNOWN = ("last_at", "attempt_count", "ahead_count", "trace_id")
"""Columns that are unknown for pods without a decision of our scheduler."""


async def undecided_pods(
    namespace: str, reason: str, known: Collection[str]
) -> list[dict[str, Any]]:
    """Return rows like those of the question `waiting-pods`, for pods that it lacks.

    Where the scheduler can't be asked, a note has the reason.
    """
    scheduler = find_target().scheduler
    if not scheduler.url:
        return []
    query = {"namespace": namespace} if namespace else {}
    try:
        rows = await SchedulerClient(scheduler).rows_if_known("/v1/undecided-pods", **query)
    except HamiError as exc:
        note(f"pods that the scheduler was never asked about are missing from the list: {exc}")
        return []
    return [
        dict.fromkeys(UNKNOWN) | row
        for row in rows or ()
        if row["pod_uid"] not in known and reason in ("", row["reason_code"])
    ]


ASKED_WITHIN = timedelta(minutes=10)
"""Time within which kube-scheduler tries a waiting pod again, with a margin."""
HELD = (
    *("reserved_at", "ended_at", "namespace", "pod_name", "container", "node", "card_index"),
    *("memory_bytes", "core_ratio", "state", "reason", "pod_uid"),
)
WAITING = (
    *("namespace", "pod_name", "card_count", "memory_bytes", "core_ratio", "since_at"),
    *("last_at", "attempt_count", "ahead_count", "summary", "reason_code", "trace_id"),
)


def ask(name: str, parameters: Mapping[str, object]) -> QuestionAnswer:
    """Return the whole answer to a question, or exit with a message."""
    answer = run(_ask(name, parameters))
    if not answer.complete:
        note(f"only the first {len(answer.rows)} rows are shown: narrow the question")
    return answer


async def _ask(name: str, parameters: Mapping[str, object]) -> QuestionAnswer:
    client = QuestionClient(find_target())
    with wrong_usage():
        return await client.ask(name, parameters)


def show(
    answer: QuestionAnswer,
    output: OutputFormat,
    *,
    columns: Sequence[str] = (),
    plural: str = "rows",
) -> None:
    """Print the answer; tables have these columns."""
    render.write(replace(records_of(answer, columns=columns), plural=plural), output)


def who(
    thing: Annotated[
        str,
        typer.Argument(
            help="card (uuid, its first characters, or NODE/INDEX) or node (default: all)"
        ),
    ] = "",
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show who holds cards, now or in the past."""
    moment = moment_of(at, "--at")
    if moment is not None and (since or until):
        raise typer.BadParameter("use --at, or --since and --until, not both", param_hint="--at")
    if (since or until) and not thing:
        raise typer.BadParameter(
            "a card or node is required with --since and --until, as in "
            "`hamictl who node-1 --since 2h`",
            param_hint="THING",
        )
    times = time_of(since, until)
    where = run(card_or_node(thing)) if thing else {}
    if since or until:
        answer = ask("who-held-card", {**where, **times})
    else:
        answer = ask("what-runs-where", {**where, "at": moment})
    show(answer, output, columns=HELD, plural="holders")


async def card_or_node(thing: str) -> dict[str, object]:
    """Return the argument as a card, if `get devices` has it, otherwise as a node.

    Raises: NotFound where it is neither.
    """
    kind, _, name = thing.rpartition("/")
    if kind in ("node", "nodes"):
        return {"node": name}
    if kind in ("device", "devices", "card", "cards"):
        return {"card": name}
    client = QuestionClient(find_target())
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
            f"no card or node {thing} found; `hamictl get devices` and `hamictl get nodes` list all"
        ) from None


def pending(
    namespace: InNamespace = "",
    reason: Annotated[
        str, typer.Option(help="only pods with this reason code (default: all)")
    ] = "",
    at: At = "",
    output: Form = TABLE,
) -> None:
    """List pods that wait, with the reason and their place.

    With pods of misspelt resources, and those that kube-scheduler never asked the scheduler about.
    """
    moment = moment_of(at, "--at")
    where = {"namespace": namespace, "reason": reason, "at": moment}
    answer = ask("waiting-pods", where)
    # The past of what kube-scheduler decides is in no ledger.
    uids = {str(row["pod_uid"]) for row in answer.rows}
    undecided = [] if moment else run(undecided_pods(namespace, reason, uids))
    if output.for_people and (answer.rows or undecided):
        counts = Counter(str(row["reason_code"]) for row in (*answer.rows, *undecided))
        by_reason = [f"{code} {count}" for code, count in counts.most_common()]
        note(f"{counts.total()} waiting: {' · '.join(by_reason)}")
    if output.for_people and (unasked := _not_asked(answer.rows, moment)):
        note(unasked)
    found = replace(answer, rows=[*answer.rows, *undecided])
    show(found, output, columns=WAITING, plural="waiting pods")


def _not_asked(rows: Sequence[Mapping[str, object]], moment: datetime | None) -> str:
    """Return a sentence about pods that kube-scheduler should have tried again; empty if none."""
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
        f"kube-scheduler has not asked about {len(late)} of them for {minutes} minutes or more; "
        "`hamictl doctor` shows whether it runs"
    )


def run_question(name: str, given: Sequence[str], output: OutputFormat) -> None:
    """Run `hamictl sql NAME key=value ...`. Raises: typer.BadParameter."""
    parameters: dict[str, object] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r}: use NAME=VALUE", param_hint="PARAMETERS")
        parameters[key] = value
    show(ask(name, parameters), output)


def list_questions(output: OutputFormat) -> None:
    """List the named questions."""
    rows = run(_questions())
    columns = [
        plain_column("QUESTION", "name"),
        plain_column("ASKS", "title"),
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
    return await QuestionClient(find_target()).questions()


def time_of(since: str, until: str) -> dict[str, datetime | None]:
    """Return the parameters of a question about a period."""
    return {"since": since_of(since), "until": moment_of(until, "--until")}
