"""`hamictl get`: lists of nodes, cards, pods and allocations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from hamicommon.k8s.client import open_kube_api

from hamictl.commands.options import AllNamespaces, Answered, InNamespace, Selector
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.formats import TABLE
from hamictl.output.records import Records
from hamictl.output.terminal import note
from hamictl.scheduler_client import SchedulerClient
from hamictl.settings import Settings
from hamictl.target import Installation, find_target
from hamictl.view import cluster_state, lists

KINDS = {
    name: kind
    for kind, names in {
        "pods": ("pods", "pod", "po"),
        "nodes": ("nodes", "node", "no"),
        "devices": ("devices", "device", "cards", "card"),
        "allocations": ("allocations", "allocation"),
    }.items()
    for name in names
}
"""Each name that is understood -> what is listed."""


def get(
    kind: Annotated[
        str,
        typer.Argument(
            help="nodes, devices, pods or allocations",
            autocompletion=lambda: list(dict.fromkeys(KINDS.values())),
        ),
    ],
    output: Answered = TABLE,
    namespace: InNamespace = "",
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
) -> None:
    """Show nodes, cards, pods, or who holds which slice."""
    if kind not in KINDS:
        raise typer.BadParameter(
            f"{kind!r}: {', '.join(dict.fromkeys(KINDS.values()))} is wanted", param_hint="KIND"
        )
    if selector and KINDS[kind] not in ("pods", "nodes"):
        raise typer.BadParameter("cards and allocations have no labels", param_hint="--selector")
    wanted = "" if all_namespaces else namespace
    render.write(run(listed(KINDS[kind], namespace=wanted, selector=selector)), output)


async def listed(kind: str, *, namespace: str, selector: str) -> Records:
    """The rows of a kind, as they are now. Raises: HamiError."""
    target = find_target(Settings())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if kind == "devices":
        return lists.devices(await _scheduler(target).rows("/v1/devices"), now)
    if kind == "allocations":
        where = {"namespace": namespace} if namespace else {}
        found = await _scheduler(target).rows("/v1/allocations", live="true", **where)
        return lists.allocations(found, now)
    async with open_kube_api(target.need_kubeconfig()) as api:
        state = await cluster_state.look(
            api, _scheduler(target), namespace=namespace, selector=selector
        )
    for missing in state.missing:
        note(f"not asked: {missing}")
    if kind == "pods":
        return lists.pods(cluster_state.pod_rows(state), now)
    return lists.nodes(cluster_state.node_rows(state), now)


def _scheduler(target: Installation) -> SchedulerClient:
    return SchedulerClient(target.need_scheduler())
