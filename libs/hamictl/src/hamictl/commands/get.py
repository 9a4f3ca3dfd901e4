"""`hamictl get`: list nodes, cards, pods, allocations, decisions or quotas, now or earlier."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from hamicommon.errors import Forbidden, NotFound, Unavailable
from hamicommon.k8s.client import KubeApi, open_kube_api

from hamictl.commands.named import ask, time_of
from hamictl.commands.options import (
    AllNamespaces,
    Answered,
    At,
    InNamespace,
    Selector,
    Since,
    Until,
    kind_of,
    moment_of,
)
from hamictl.commands.pod_names import names_after_kind
from hamictl.commands.runner import run, spoken_errors
from hamictl.output import render
from hamictl.output.records import TABLE, Records, Row
from hamictl.output.terminal import console, note, now_text
from hamictl.scheduler_client import SchedulerClient
from hamictl.target import find_target
from hamictl.view import cluster_state, lists
from hamictl.view.named import records_of

KINDS = {
    name: kind
    for kind, names in {
        "nodes": ("nodes", "node", "no"),
        "devices": ("devices", "device", "cards", "card"),
        "pods": ("pods", "pod", "po"),
        "allocations": ("allocations", "allocation"),
        "decisions": ("decisions", "decision"),
        "quotas": ("quotas", "quota"),
    }.items()
    for name in names
}
"""Accepted names -> the kind that is listed."""
THEN = {"nodes": "nodes", "devices": "cards", "allocations": "what-runs-where"}
"""Kinds that can be listed for an earlier time -> the question that answers it."""
DECISIONS = (
    *("decided_at", "last_at", "namespace", "pod_name", "outcome", "node", "attempt_count"),
    *("decision_s", "summary", "trace_id"),
)
WATCH_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def get(
    kind: Annotated[
        str,
        typer.Argument(
            help="nodes, devices, pods, allocations, decisions or quotas",
            autocompletion=lambda: list(dict.fromkeys(KINDS.values())),
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="names; NAMESPACE/NAME of a pod, the uuid of a card (default: all)",
            autocompletion=names_after_kind,
        ),
    ] = None,
    output: Answered = TABLE,
    namespace: InNamespace = "",
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    at: At = "",
    since: Since = "",
    until: Until = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="print again every 2 s until Ctrl-C")
    ] = False,
) -> None:
    """List nodes, cards, pods, allocations, decisions or quotas."""
    wanted = kind_of(kind, KINDS)
    space = "" if all_namespaces else namespace
    _check(wanted, selector=selector, at=at, since=since, until=until, watch=watch)
    while True:
        found = _find_records(wanted, space, selector, at, since, until)
        if names:
            with spoken_errors():
                found = of_names(found, wanted, names)
        if watch and console.is_terminal and output.for_people:
            console.file.write(_CLEAR)
        render.write(found, output)
        if not watch:
            return
        time.sleep(WATCH_S)


def of_names(found: Records, kind: str, names: Sequence[str]) -> Records:
    """Return the rows with these names. Raises: NotFound for a name without a row."""
    chosen: list[Row] = []
    for name in names:
        rows = [row for row in found.rows if name in _names(found.name(row))]
        if not rows:
            raise NotFound(f"{kind}: {name} not found; `hamictl get {kind}` lists all")
        chosen += rows
    return replace(found, rows=chosen)


def _names(full: str) -> tuple[str, ...]:
    """Return the names of a row: `pod/default/train`, `default/train` and `train`."""
    parts = full.split("/")
    return tuple("/".join(parts[at:]) for at in range(len(parts)))


def _check(kind: str, *, selector: str, at: str, since: str, until: str, watch: bool) -> None:
    """Check the options. Raises: typer.BadParameter for one that the list does not support."""
    if selector and kind not in ("pods", "nodes"):
        raise typer.BadParameter(f"{kind} have no labels", param_hint="--selector")
    if at and kind not in THEN:
        raise typer.BadParameter(f"works with {', '.join(THEN)} only", param_hint="--at")
    if (since or until) and kind != "decisions":
        option = "--since" if since else "--until"
        raise typer.BadParameter("works with decisions only; use --at TIME", param_hint=option)
    if at and watch:
        raise typer.BadParameter(
            "does not work with --at: the past does not change", param_hint="--watch"
        )


def _find_records(
    kind: str, namespace: str, selector: str, at: str, since: str, until: str
) -> Records:
    moment = moment_of(at, "--at")
    where: Mapping[str, object] = {"namespace": namespace}
    if kind == "decisions":
        times = time_of(since, until)
        found = records_of(ask("decisions", {**where, **times}), columns=DECISIONS)
        return replace(found, plural="decisions")
    if kind == "quotas":
        found = lists.quota_records(ask("quota", where))
        run(_note_vain_quotas(namespace))
        return found
    if moment is not None:
        about = where if kind == "allocations" else {}
        return records_of(ask(THEN[kind], {**about, "at": moment}))
    return run(list_records(kind, namespace=namespace, selector=selector))


async def list_records(kind: str, *, namespace: str, selector: str) -> Records:
    """Return the present rows of a kind. Raises: HamiError."""
    target = find_target()
    now = now_text()
    if kind == "devices":
        return lists.devices(await target.scheduler_client().rows("/v1/devices"), now)
    if kind == "allocations":
        where = {"namespace": namespace} if namespace else {}
        found = await target.scheduler_client().rows("/v1/allocations", live="true", **where)
        return lists.allocations(found, now)
    async with open_kube_api(target.need_kubeconfig()) as api:
        state = await cluster_state.look(
            api, target.scheduler_client(), namespace=namespace, selector=selector
        )
        if namespace and kind == "pods" and not state.pods:
            await _need_namespace(api, namespace)
    for missing in state.missing:
        note(f"unavailable: {missing}")
    if kind == "pods":
        return lists.pods(cluster_state.pod_rows(state), now)
    return lists.nodes(cluster_state.node_rows(state), now, cluster_state.cards_by_node(state))


async def _need_namespace(api: KubeApi, namespace: str) -> None:
    """Raise NotFound for an unknown namespace; users without the right to read namespaces pass."""
    try:
        await api.get(f"/api/v1/namespaces/{namespace}")
    except NotFound:
        raise NotFound(f"namespace {namespace} does not exist") from None
    except (Forbidden, Unavailable):
        return


async def _note_vain_quotas(namespace: str) -> None:
    """Print ResourceQuotas that limit nothing on standard error."""
    scheduler = find_target().scheduler
    if not scheduler.url:
        return
    try:
        rows = await SchedulerClient(scheduler).rows_if_known("/v1/vain-settings")
    except (Forbidden, Unavailable) as exc:
        note(f"quotas without effect are unknown: {exc}")
        return
    for row in rows or ():
        if row["kind"] == "ResourceQuota" and namespace in ("", row["namespace"]):
            note(lists.vain_setting(row))
