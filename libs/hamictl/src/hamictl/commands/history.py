"""`hamictl history`: changes of the slices of a pod, a node or a card."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import quote

import typer
from hamicommon.errors import InvalidRequest, NotFound

from hamictl.commands.answers import (
    allocations_named,
    existing_uid,
    pods_named,
    why_unknown,
)
from hamictl.commands.named import ask, card_or_node, uuid_or_name
from hamictl.commands.objects import Namespace
from hamictl.commands.options import KINDS, Answered, Since, Until, moment_of, since_of
from hamictl.commands.pod_names import pod_name, pod_names
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.records import TABLE, OutputFormat, Row
from hamictl.output.terminal import note
from hamictl.scheduler_client import SchedulerClient
from hamictl.target import Installation, find_target
from hamictl.view.history import changes, earlier_line, place_changes, uids_newest_first, with_cards

PODS_SHOWN = 20
"""Maximum number of pods of one name: a controller may recreate a pod many times."""
NODES_ASKED = 20
PLACES = {name: kind for name, kind in KINDS.items() if kind != "pod"}
SPAN = timedelta(days=1)
"""Default period for a node or a card."""
_ONE_EARLIER = "1 earlier pod had this name:"


def history(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="POD|NODE|CARD",
            help="name or uid of a pod, also of a deleted one; node/NAME; card/UUID; "
            "card/NODE/INDEX",
            autocompletion=pod_names,
        ),
    ],
    name: Annotated[str, typer.Argument(help="name, if the first argument is a kind")] = "",
    namespace: Namespace = "default",
    since: Since = "",
    until: Until = "",
    output: Answered = TABLE,
) -> None:
    """List the state changes of a pod, a node or a card."""
    thing = _thing(thing, name)
    begin, end = since_of(since), moment_of(until, "--until")
    if begin is not None and begin >= (end or datetime.now(UTC)):
        raise typer.BadParameter("is not before --until", param_hint="--since")
    place = run(_pod_or_place(thing, namespace, (begin, end), output))
    if place is not None:
        _of_place(place, begin, end, output)


def _thing(thing: str, name: str) -> str:
    """Return `node/node-1` for `node node-1`. Raises: typer.BadParameter."""
    if not name:
        return thing
    if thing not in KINDS:
        raise typer.BadParameter(f"{thing!r}: use pod, node or card", param_hint="KIND")
    return f"{'pod' if thing == 'po' else thing}/{name}"


async def _pod_or_place(
    thing: str,
    namespace: str,
    span: tuple[datetime | None, datetime | None],
    output: OutputFormat,
) -> dict[str, object] | None:
    """Print the history of a pod; if there is none, try a node or a card of this name.

    Raises: NotFound where it is neither a pod nor a node nor a card.
    """
    kind, _, rest = thing.partition("/")
    if kind in PLACES and rest:
        return {"node": rest} if PLACES[kind] == "node" else {"card": await uuid_or_name(rest)}
    target = find_target()
    space, name = pod_name(thing, namespace)
    existing = await existing_uid(target, space, name)
    scheduler = target.scheduler_client()
    granted = await allocations_named(scheduler, space, name)
    if not granted and existing is None:
        # A pod that was refused until it was deleted.
        refused = await pods_named(scheduler, space, name)
        existing = str(refused[0]["pod_uid"]) if refused else None
    if granted or existing is not None:
        await _of_pod(target, (space, name), existing, granted, span, output)
        return None
    if not thing.startswith(("pod/", "pods/")) and (place := await _place(thing)) is not None:
        return place
    raise NotFound(await why_unknown(target, space, name))


async def _place(thing: str) -> dict[str, object] | None:
    """Return the node or card as parameters; None: it is neither, or no service answers."""
    try:
        return await card_or_node(thing)
    except (InvalidRequest, NotFound):
        return None


async def _of_pod(
    target: Installation,
    pod: tuple[str, str],
    existing: str | None,
    granted: Sequence[Row],
    span: tuple[datetime | None, datetime | None],
    output: OutputFormat,
) -> None:
    scheduler = target.scheduler_client()
    if granted:
        pod = str(granted[0]["namespace"]), str(granted[0]["pod_name"])
    newest, *earlier = uids_newest_first(granted, existing)
    # For people the newest pod, and a line for each before it; for programs all of them.
    shown = [newest] if output.for_people else [newest, *earlier][:PODS_SHOWN]
    index_of = await _card_indices(scheduler, [row for row in granted if row["pod_uid"] in shown])
    rows: list[Row] = []
    for uid in shown:
        found = await scheduler.rows(f"/v1/pods/{quote(uid, safe='')}/history")
        rows += with_cards(_within(found, *span), granted, index_of)
    render.write(changes(rows, "/".join(pod)), output)
    if output.for_people and not granted:
        note(f"the pod was never placed: `hamictl explain {'/'.join(pod)}` has the reason")
    if output.for_people and earlier:
        note(f"{len(earlier)} earlier pods had this name:" if len(earlier) > 1 else _ONE_EARLIER)
        for uid in earlier[:PODS_SHOWN]:
            note(f"  {earlier_line(uid, granted)}")
    if len(earlier) >= PODS_SHOWN:
        note(f"only the newest {PODS_SHOWN} are shown (`hamictl history UID` shows any other)")


def _within(rows: Sequence[Row], begin: datetime | None, end: datetime | None) -> list[Row]:
    return [
        row
        for row in rows
        if (begin is None or datetime.fromisoformat(str(row["at"])) >= begin)
        and (end is None or datetime.fromisoformat(str(row["at"])) < end)
    ]


async def _card_indices(scheduler: SchedulerClient, allocations: Sequence[Row]) -> dict[str, int]:
    """Return the index by uuid of cards that their nodes still have."""
    nodes = dict.fromkeys(str(row["node"]) for row in allocations if row["node"])
    return {
        str(card["uuid"]): card["index"]
        for node in list(nodes)[:NODES_ASKED]
        for card in await scheduler.rows("/v1/devices", node=node)
    }


def _of_place(
    place: dict[str, object], begin: datetime | None, end: datetime | None, output: OutputFormat
) -> None:
    """Return the steps of all grants on a node or card, and times when its cards were unhealthy."""
    until = end or datetime.now(UTC)
    since = begin or until - SPAN
    span = {"since": since, "until": until}
    slices = ask("who-held-card", {**place, **span}).rows
    nodes = dict.fromkeys(str(row["node"]) for row in slices)
    steps = [row for node in nodes for row in ask("changes", {"node": node, **span}).rows]
    incidents = ask("card-incidents", {**place, **span}).rows
    render.write(place_changes(steps, slices, incidents, since, until), output)
    if output.for_people and begin is None:
        note("showing the last 24 hours; use --since for more")
