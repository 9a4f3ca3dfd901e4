"""`hamictl usage`: what was used of what was granted, of namespaces, a pod, a node or a card."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer
from hamicommon.errors import NotFound

from hamictl.commands.answers import pod_name
from hamictl.commands.named import ask, show
from hamictl.commands.options import KINDS, At, Since, Until, moment_of, since_of
from hamictl.commands.options import Answered as Form
from hamictl.commands.pod_names import kinds_and_pods, names_after_kind
from hamictl.commands.runner import spoken_errors
from hamictl.output.records import TABLE
from hamictl.output.terminal import note

SPANS = {
    "namespace": timedelta(days=30),
    "pod": timedelta(minutes=15),
    "node": timedelta(hours=6),
    "card": timedelta(hours=6),
    "idle": timedelta(days=1),
    "overasked": timedelta(days=7),
}
"""Spans without --since, by what is asked about."""
COLUMNS = {
    "namespace": (
        *("namespace", "slice_s", "memory_bytes", "used_memory_bytes", "core_ratio"),
        *("used_core_ratio", "sample_count"),
    ),
    "pod": (
        *("namespace", "pod_name", "container", "node", "card_index", "memory_bytes"),
        *("used_memory_bytes", "used_memory_max_bytes", "core_ratio", "used_core_ratio"),
        *("used_core_max_ratio", "sample_count", "sampled_at"),
    ),
    "series": (
        *("began_at", "device_uuid", "memory_bytes", "used_memory_bytes", "used_memory_max_bytes"),
        *("used_core_ratio", "used_core_max_ratio", "sample_count"),
    ),
    "idle": (
        *("namespace", "owner_name", "pod_count", "idle_gib_hour_count", "idle_s", "sampled_s"),
        *("unknown_s", "idle_ratio"),
    ),
    "overasked": (
        *("namespace", "owner_name", "pod_count", "memory_bytes", "used_memory_bytes"),
        *("used_ratio", "hour_count"),
    ),
}


NOTHING_YET = (
    "It is asked of the sums of whole hours: each is summed up within 15 minutes after its "
    "end; `hamictl showback` has the grants of the hour that runs."
)


def usage(
    kind: Annotated[
        str,
        typer.Argument(
            help="pod, node or card, or KIND/NAME; without it all namespaces",
            autocompletion=kinds_and_pods,
        ),
    ] = "",
    name: Annotated[
        str, typer.Argument(help="its name; of a card the uuid", autocompletion=names_after_kind)
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="of this namespace")] = "",
    idle: Annotated[
        bool, typer.Option("--idle", help="who holds a share and does nothing with it")
    ] = False,
    overasked: Annotated[
        bool, typer.Option("--overasked", help="who asks for far more than they use")
    ] = False,
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show what was used of what was granted: of namespaces, a pod, a node or a card."""
    wanted, name = _subject_of(kind, name, idle=idle, overasked=overasked)
    span = _span(wanted, at, since, until)
    if wanted == "pod":
        space, pod = pod_name(name, namespace or "default")
        about = {"namespace": space, "pod": pod}
        show(ask("pod-usage", {**about, **span}), output, columns=COLUMNS["pod"])
        return
    if wanted in ("node", "card"):
        if namespace:
            raise typer.BadParameter(f"a {wanted} has none", param_hint="--namespace")
        node = name if wanted == "node" else _node_of(name, span["until"])
        about = {"node": node, "card": name if wanted == "card" else ""}
        show(ask("usage-series", {**about, **span}), output, columns=COLUMNS["series"])
        return
    question = {"namespace": "namespace-use", "idle": "idle-held"}.get(wanted, wanted)
    answer = ask(question, {"namespace": namespace, **span})
    show(answer, output, columns=COLUMNS[wanted])
    if output.for_people and not answer.rows:
        note(NOTHING_YET)


def _subject_of(kind: str, name: str, *, idle: bool, overasked: bool) -> tuple[str, str]:
    """Return the subject that is asked about, and its name. Raises: typer.BadParameter."""
    if idle and overasked:
        raise typer.BadParameter("one of --idle and --overasked", param_hint="--idle")
    if not kind:
        return ("idle" if idle else "overasked" if overasked else "namespace"), ""
    if idle or overasked:
        option = "--idle" if idle else "--overasked"
        raise typer.BadParameter("is about owners: leave KIND out, or take -n", param_hint=option)
    if not name:
        kind, _, name = kind.partition("/")
    if kind not in KINDS or not name:
        raise typer.BadParameter(
            "pod NAME, node NAME or card UUID is wanted, or nothing", param_hint="KIND"
        )
    return KINDS[kind], name


def _span(wanted: str, at: str, since: str, until: str) -> dict[str, datetime | None]:
    """From when to when; with --at the usual span up to then. Raises: typer.BadParameter."""
    if at and (since or until):
        raise typer.BadParameter("a moment, or a time from --since to --until", param_hint="--at")
    end = moment_of(at, "--at") if at else moment_of(until, "--until")
    begin = since_of(since)
    if begin is None and end is not None:
        begin = end - SPANS[wanted]
    return {"since": begin, "until": end}


def _node_of(card: str, at: datetime | None) -> str:
    """Return the node that the card was on then. Ends the verb if the card is unknown."""
    rows = ask("cards", {"card": card, "at": at}).rows
    if not rows:
        with spoken_errors():
            raise NotFound(f"there is no card {card}: `hamictl get devices` has those known")
    return str(rows[0]["node"])
