"""`hamictl usage`: used against granted amounts of namespaces, a pod, a node or a card."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer
from hamicommon.errors import NotFound

from hamictl.commands.named import ask, show, uuid_or_name
from hamictl.commands.options import Answered as Form
from hamictl.commands.options import At, Since, Until, kind_and_name, moment_of, since_of
from hamictl.commands.pod_names import kinds_and_pods, names_after_kind, pod_name
from hamictl.commands.runner import run, spoken_errors
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
"""Default periods by kind."""
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
    "`usage` covers finished hours only, each ready 15 minutes after its end; for the current "
    "hour: `hamictl showback --since 1h`."
)


def usage(
    kind: Annotated[
        str,
        typer.Argument(
            help="kind (pod, node or card), or KIND/NAME (default: sums by namespace)",
            autocompletion=kinds_and_pods,
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Argument(
            help="name; for a card the uuid, its first characters, or NODE/INDEX",
            autocompletion=names_after_kind,
        ),
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="only this namespace")] = "",
    idle: Annotated[
        bool,
        typer.Option("--idle", help="show pods whose slices are not used (default period: 24 h)"),
    ] = False,
    overasked: Annotated[
        bool,
        typer.Option(
            "--overasked",
            help="show workloads that ask for far more than they use (default period: 7 days)",
        ),
    ] = False,
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show used against granted, by namespace or for one pod, node or card."""
    wanted, name = _subject_of(kind, name, idle=idle, overasked=overasked)
    if wanted == "card":
        name = run(uuid_or_name(name))
    span = _span(wanted, at, since, until)
    if wanted == "pod":
        space, pod = pod_name(name, namespace or "default")
        about = {"namespace": space, "pod": pod}
        show(ask("pod-usage", {**about, **span}), output, columns=COLUMNS["pod"])
        return
    if wanted in ("node", "card"):
        if namespace:
            raise typer.BadParameter(f"a {wanted} has no namespace", param_hint="--namespace")
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
    """Return kind and name that the usage is about. Raises: typer.BadParameter."""
    if idle and overasked:
        raise typer.BadParameter("use --idle or --overasked, not both", param_hint="--idle")
    if not kind:
        return ("idle" if idle else "overasked" if overasked else "namespace"), ""
    if idle or overasked:
        option = "--idle" if idle else "--overasked"
        raise typer.BadParameter("is about owners: leave KIND out, or use -n", param_hint=option)
    return kind_and_name(kind, name, ", or no argument")


def _span(wanted: str, at: str, since: str, until: str) -> dict[str, datetime | None]:
    """Return start and end; --at ends the default period. Raises: typer.BadParameter."""
    if at and (since or until):
        raise typer.BadParameter("use --at, or --since and --until, not both", param_hint="--at")
    end = moment_of(at, "--at") if at else moment_of(until, "--until")
    begin = since_of(since)
    if begin is None and end is not None:
        begin = end - SPANS[wanted]
    return {"since": begin, "until": end}


def _node_of(card: str, at: datetime | None) -> str:
    """Return the node that had the card at that time; exit if the card is unknown."""
    rows = ask("cards", {"card": card, "at": at}).rows
    if not rows:
        with spoken_errors():
            raise NotFound(f"card {card} not found; `hamictl get devices` lists all")
    return str(rows[0]["node"])
