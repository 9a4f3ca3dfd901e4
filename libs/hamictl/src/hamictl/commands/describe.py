"""`hamictl describe`: all facts about one pod, node or card; `hamictl open`: its web page."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

import httpx
import typer
from hamicommon.errors import HamiError, InvalidRequest, NotFound

from hamictl.commands import answers
from hamictl.commands.named import HELD, ask, uuid_of, uuid_or_name
from hamictl.commands.objects import Namespace
from hamictl.commands.options import KINDS, Answered, At, kind_and_name, moment_of
from hamictl.commands.pod_names import kinds_and_pods, names_after_kind, pod_name
from hamictl.commands.runner import console, run, spoken_errors
from hamictl.output import render
from hamictl.output.records import TABLE, OutputFormat, base_units
from hamictl.output.terminal import note, shown_time
from hamictl.questions import QuestionAnswer as Answer
from hamictl.questions import QuestionClient
from hamictl.target import find_target
from hamictl.view.named import records_of

PAGE_TIMEOUT_S = 3.0
STEPS = ("entered_at", "state", "lasted_s", "node", "reason", "actor", "attempt_count")
INCIDENTS = ("sick_at", "well_at", "sick_s", "health_reason", "device_uuid", "pod_count")

Kind = Annotated[
    str, typer.Argument(help="pod, node or card, or KIND/NAME", autocompletion=kinds_and_pods)
]
Name = Annotated[
    str,
    typer.Argument(
        help="name; for a card the uuid, its first characters, or NODE/INDEX",
        autocompletion=names_after_kind,
    ),
]


def describe(
    kind: Kind,
    name: Name = "",
    namespace: Namespace = "default",
    at: At = "",
    output: Answered = TABLE,
) -> None:
    """Show everything about one pod, node or card."""
    wanted, name = kind_and_name(kind, name)
    if wanted == "pod":
        if at:
            raise typer.BadParameter(
                "works with nodes and cards only; `hamictl history POD` shows the past",
                param_hint="--at",
            )
        _pod(name, namespace, output)
        return
    moment = moment_of(at, "--at")
    if wanted == "card":
        name = run(uuid_or_name(name))
    where = {wanted: name}
    about = ask("nodes" if wanted == "node" else "cards", {**where, "at": moment})
    if not about.rows:
        then = "" if moment is None else f" at {shown_time(moment)}"
        with spoken_errors():
            raise NotFound(
                f"{wanted} {name} did not exist{then}; `hamictl who {name} --since 30d` shows "
                f"its holders"
            )
    parts = {"": about}
    if wanted == "node":
        parts["Cards"] = ask("cards", {**where, "at": moment})
    parts["Held by"] = ask("what-runs-where", {**where, "at": moment})
    until = datetime.now(UTC) if moment is None else moment
    span = {"since": until - timedelta(days=30), "until": until}
    parts["Incidents of 30 days"] = ask("card-incidents", {**where, **span})
    _write(parts, output, columns={"Held by": HELD, "Incidents of 30 days": INCIDENTS})


def _pod(pod: str, namespace: str, output: OutputFormat) -> None:
    namespace, name = pod_name(pod, namespace)
    asked, more = {"namespace": namespace, "pod": name}, dict[str, object]()
    if output.for_people:
        answers.explain(name, namespace=namespace)
        steps = run(_steps_or_none(asked))
        parts = {} if steps is None else {"Steps": steps}
    else:
        parts = {"Steps": ask("pod-steps", asked), "Decisions": ask("why-waiting", asked)}
        more = {"cards": run(_troubled_cards(namespace, name))}
    _write(parts, output, columns={"Steps": STEPS}, more=more)


async def _troubled_cards(namespace: str, name: str) -> object:
    """Return the pod's cards whose condition changed, as explain reports them; None: unknown."""
    target = find_target()
    try:
        uid = await answers.pod_uid(target, namespace, name)
        scheduler = target.scheduler_client()
        found = await scheduler.get(f"/v1/pods/{quote(uid, safe='')}/explain")
    except HamiError as exc:
        note(f"the state of its cards is unknown: {exc}")
        return None
    return found.get("cards")


async def _steps_or_none(asked: Mapping[str, object]) -> Answer | None:
    """Return the pod's steps; None if the ledger does not know a pod that the cluster has."""
    try:
        return await QuestionClient(find_target()).ask("pod-steps", asked)
    except NotFound:
        return None


def _write(
    parts: dict[str, Answer],
    output: OutputFormat,
    *,
    columns: dict[str, tuple[str, ...]],
    more: Mapping[str, object] | None = None,
) -> None:
    """Print the parts; `more`: further fields for JSON and YAML."""
    if not output.for_people:
        found = {_key(title): base_units(list(answer.rows)) for title, answer in parts.items()}
        render.write_document({**found, **(more or {})}, output)
        return
    for title, answer in parts.items():
        if not answer.rows:
            continue
        if title:
            console.print(f"\n{title}", style="bold", highlight=False)
        render.write(records_of(answer, columns=columns.get(title, ())), output)


def _key(title: str) -> str:
    head, *rest = (title or "About").split()
    return head.lower() + "".join(part.capitalize() for part in rest)


def open_page(
    kind: Annotated[
        str,
        typer.Argument(
            help="pod, node or card, or the name of a pod (default: the overview)",
            autocompletion=kinds_and_pods,
        ),
    ] = "",
    name: Name = "",
    namespace: Namespace = "default",
) -> None:
    """Print the address of a page and open it in a browser."""
    with spoken_errors():
        url = find_target().pages_url
        if not url:
            raise InvalidRequest(
                "the address of the pages is unknown: start a local system with `hamictl up`, "
                "or set HAMI_PAGES_URL=http(s)://host:port (docs/hamictl-on-a-cluster.md)"
            )
    if kind and not name and kind.partition("/")[0] not in KINDS:
        # An argument that is no kind names a pod, as everywhere.
        kind, name = "pod", kind
    path = ""
    if kind:
        kind, name = kind_and_name(kind, name)
        path = _path(kind, run(uuid_of(name)) if kind == "card" else name, namespace)
    address = f"{url.rstrip('/')}/{path}"
    if run(_is_missing(address)):
        with spoken_errors():
            raise NotFound(f"{kind} {name} has no page: {_known_by(kind)}")
    sys.stdout.write(f"{address}\n")
    if console.is_terminal:
        webbrowser.open(address)


async def _is_missing(address: str) -> bool:
    """Return whether the web pages have no such address; False if they can't be asked."""
    try:
        async with httpx.AsyncClient(timeout=PAGE_TIMEOUT_S) as client:
            return (await client.get(address)).status_code == HTTPStatus.NOT_FOUND
    except httpx.HTTPError as exc:
        note(f"the pages at {address} are unavailable: {exc or type(exc).__name__}")
        return False


def _known_by(kind: str) -> str:
    if kind == "pod":
        return "`hamictl get pods` lists all; only pods that asked for a card have a page"
    return f"`hamictl get {kind}s` lists all"


def _path(kind: str, name: str, namespace: str) -> str:
    if kind == "pod":
        space, pod = pod_name(name, namespace)
        return f"pods/{quote(space, safe='')}/{quote(pod, safe='')}"
    return f"{kind}s/{quote(name, safe='')}"
