"""`hamictl scale`: the nodes to add for the waiting pods.

`plan` computes them locally from a dump of a cluster, `status` asks a cluster's scheduler for its
plan.
"""

from __future__ import annotations

from typing import Annotated

import typer
from hamicommon.errors import InvalidRequest
from hamicommon.scaling.node_types import GROUP_LABELS, read_types
from hamicommon.scaling.planner import plan_nodes

from hamictl.commands.named import ask, show, time_of
from hamictl.commands.objects import Namespace, Output
from hamictl.commands.options import Answered as Form
from hamictl.commands.options import Since, Until
from hamictl.commands.runner import console, spoken_errors
from hamictl.commands.simulate import (
    Ascend,
    ClusterFile,
    ConfigFile,
    GpuPolicy,
    Iluvatar,
    NodePolicy,
    items_of,
    pods_of,
    policy_of,
    served_vendors,
)
from hamictl.exit_codes import ExitCode
from hamictl.manifests import read_text
from hamictl.output.records import TABLE

app = typer.Typer(help="Show how many nodes the waiting pods need.", no_args_is_help=True)
WISHES = ("wanted_at", "type", "state", "pod_count", "node", "asked_at", "ended_at", "reason")


@app.callback()
def scale() -> None:
    """Show how many nodes the waiting pods need."""


@app.command()
def status(since: Since = "", until: Until = "", output: Form = TABLE) -> None:
    """Show the nodes that are wanted for waiting pods, and what became of those of the last day."""
    show(ask("scale-wishes", time_of(since, until)), output, columns=WISHES, plural="nodes")


@app.command()
def plan(
    cluster: ClusterFile,
    file: Annotated[
        list[str],
        typer.Option("--file", "-f", help="manifest of pods to plan after those that wait"),
    ] = [],  # noqa: B006 (typer reads it, nobody writes it)
    types: Annotated[
        str, typer.Option("--types", help="file of node types (docs/scaling.md); - is stdin")
    ] = "",
    group_label: Annotated[
        list[str],
        typer.Option("--group-label", help="label whose value names a node's type (repeatable)"),
    ] = list(GROUP_LABELS),  # noqa: B006 (typer reads it, nobody writes it)
    device_config: ConfigFile = None,
    enable_ascend: Ascend = False,
    enable_iluvatar: Iluvatar = False,
    node_policy: NodePolicy = "binpack",
    gpu_policy: GpuPolicy = "spread",
    namespace: Namespace = "default",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Show how many nodes of which type the waiting pods need; nothing is changed.

    Pods are taken by priority and age. A node's cards, CPU, memory, labels and taints are looked
    at; quotas and affinity are not. Exits with 6 if a pod fits on no type of node.
    """
    with spoken_errors():
        vendors = served_vendors(device_config, enable_ascend, enable_iluvatar)
        policy = policy_of(node_policy, gpu_policy)
        items = items_of(read_text(cluster), cluster)
        nodes = [item for item in items if item.get("kind") == "Node"]
        if not nodes and not types:
            raise InvalidRequest(
                f"{cluster} has no Node: use the output of kubectl get nodes,pods -A -o json, "
                "or describe node types (--types)"
            )
        found = plan_nodes(
            nodes,
            [item for item in items if item.get("kind") == "Pod"],
            [pod for each in file for pod in pods_of(each, namespace)],
            read_types(read_text(types), types) if types else (),
            vendors,
            group_labels=group_label,
            defaults=policy,
        )
    if output is Output.JSON:
        console.print_json(data=found.as_json())
    else:
        for problem in found.problems:
            console.print(f"skipped: {problem}", style="yellow", highlight=False)
        for line in found.sentences():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if found.refused:
        raise typer.Exit(ExitCode.ANSWER_IS_NO)
