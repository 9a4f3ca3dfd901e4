"""`hamictl kueue`: Kueue's objects for queueing slices, computed locally from a cluster dump."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml
from hamicommon.errors import InvalidRequest
from hamicommon.kueue.recipe import FLAVOR_LABELS, QueueNames, render_policy, render_recipe

from hamictl.commands.objects import Namespace, Output
from hamictl.commands.runner import console, spoken_errors
from hamictl.commands.simulate import (
    Ascend,
    ClusterFile,
    ConfigFile,
    Iluvatar,
    items_of,
    served_vendors,
)
from hamictl.manifests import read_text
from hamictl.output.terminal import complain

app = typer.Typer(help="Print what Kueue needs to queue for slices.", no_args_is_help=True)


@app.callback()
def kueue() -> None:
    """Print what Kueue needs to queue for slices."""


@app.command()
def setup(
    cluster: ClusterFile,
    queue: Annotated[
        str, typer.Option("--queue", help="name of the LocalQueue that Jobs name")
    ] = "gpu",
    cluster_queue: Annotated[
        str, typer.Option("--cluster-queue", help="name of the ClusterQueue behind it")
    ] = "gpu",
    node_label: Annotated[
        list[str],
        typer.Option("--node-label", help="label whose value names a node's cards (repeatable)"),
    ] = list(FLAVOR_LABELS),  # noqa: B006 (typer reads it, nobody writes it)
    check: Annotated[
        bool,
        typer.Option("--check", help="also create the admission check of HAMI_SCHEDULER_KUEUE=on"),
    ] = False,
    policy: Annotated[
        bool,
        typer.Option(
            "--policy",
            help="also create a policy that refuses Jobs whose slices Kueue would miscount",
        ),
    ] = False,
    device_config: ConfigFile = None,
    enable_ascend: Ascend = False,
    enable_iluvatar: Iluvatar = False,
    namespace: Namespace = "default",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Print Kueue's flavors and queues for the cards of a cluster; nothing is changed.

    The output is for kubectl apply; its first lines are for Kueue's own Configuration.
    """
    with spoken_errors():
        vendors = served_vendors(device_config, enable_ascend, enable_iluvatar)
        nodes = [
            item for item in items_of(read_text(cluster), cluster) if item.get("kind") == "Node"
        ]
        if not nodes:
            raise InvalidRequest(
                f"{cluster} has no Node: use the output of kubectl get nodes -o json"
            )
        names = QueueNames(cluster_queue=cluster_queue, local_queue=queue, namespace=namespace)
        found = render_recipe(nodes, vendors, names, labels=node_label, check=check)
    objects = [*found.objects, *(render_policy(vendors) if policy else ())]
    for problem in found.problems:
        complain(f"skipped: {problem}")
    if output is Output.JSON:
        console.print_json(data={"configuration": found.configuration, "objects": objects})
        return
    settings = yaml.safe_dump(found.configuration, sort_keys=False).splitlines()
    lines = [
        "# Kueue's Configuration (ConfigMap kueue-manager-config); restart Kueue after it:",
        *(f"# {line}" for line in settings),
        "---",
        yaml.safe_dump_all(objects, sort_keys=False, width=100).rstrip(),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
