"""`hamictl simulate`: decide about pods like the scheduler, from a dump of a cluster.

For people: a dump of a cluster and manifests. For programs: `--jsonl`, one case per line on
standard input, one answer per line on standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
import yaml
from hamicommon import device_config as deviceconfig
from hamicommon.domain.allocations import ContainerGrant
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_annotations import (
    CARD_POLICIES,
    GPU_POLICY,
    NODE_POLICIES,
    NODE_POLICY,
    one_of,
)
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_node
from hamicommon.simulation.cases import Simulator
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.planner import PodPlan, plan
from hamicommon.vendors.pod_request import pod_policy
from hamicommon.vendors.registry import Vendors
from rich.table import Table

from hamictl.commands.objects import Namespace, Output
from hamictl.commands.runner import console, spoken_errors
from hamictl.exit_codes import WrongUsage
from hamictl.manifests import Manifest, read_manifest, read_text
from hamictl.view.lists import cores, table


def verdict_table(answer: PodPlan, cluster: Cluster) -> Table:
    """Return a table with a row per node: the cards of one that fits, or HAMi's reason."""
    verdict = answer.verdict
    rows = []
    for name in cluster.nodes:
        node = verdict.nodes[name]
        mark = "chosen" if name == verdict.chosen else "fits" if node.fits else "refused"
        text = _cards(node.containers) if node.fits else node.reason
        rows.append((str(name), mark, text or "-"))
    return table(f"{answer.namespace}/{answer.name}", ("NODE", "ANSWER", "CARDS OR REASON"), rows)


def _cards(containers: Sequence[ContainerGrant]) -> str:
    lines = [
        f"{container.name}: {share.uuid} {share.memory_mib} MiB {cores(share.core_percent)}"
        for container in containers
        for share in container.shares
    ]
    return "\n".join(lines)


def as_text(answer: PodPlan) -> Iterator[str]:
    """Yield the result in sentences."""
    verdict, name = answer.verdict, f"{answer.namespace}/{answer.name}"
    yield from (f"warning: {warning}" for warning in answer.warnings)
    if verdict.error:
        yield f"{name} can't be placed anywhere: {verdict.error}."
    elif verdict.unfiltered or verdict.chosen is not None:
        where = f" would go to {verdict.chosen}" if verdict.chosen else ""
        yield f"{name}{where}: {answer.summary}."
    else:
        yield f"{name} fits nowhere: {answer.summary}."
        yield from (f"  {change}" for change in answer.changes)
    yield ""


ClusterFile = Annotated[
    str, typer.Option("--cluster", help="output of kubectl get nodes,pods -A -o json; - is stdin")
]
Manifests = Annotated[
    list[str],
    typer.Option("--file", "-f", help="manifest of pods, Deployments and so on; - is stdin"),
]
Batch = Annotated[
    bool, typer.Option("--jsonl", help="read one case per line on stdin, write one answer per line")
]
NodePolicy = Annotated[
    str,
    typer.Option("--node-policy", help="default node policy: binpack, spread, fragmentation"),
]
GpuPolicy = Annotated[
    str,
    typer.Option(
        "--gpu-policy",
        help="default card policy: binpack, spread, topology-aware, mutex, numa, or a list of "
        "them; or fragmentation",
    ),
]


def simulate(
    cluster: ClusterFile = "",
    file: Manifests = [],  # noqa: B006 (typer reads it, nobody writes it)
    jsonl: Batch = False,
    device_config: ConfigFile = None,
    enable_ascend: Ascend = False,
    enable_iluvatar: Iluvatar = False,
    node_policy: NodePolicy = "binpack",
    gpu_policy: GpuPolicy = "spread",
    namespace: Namespace = "default",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Show where pods would be placed, and why, in a dump of a cluster.

    Pods are taken one after the other: each finds what the pods before it took. Cards are all that
    is looked at: CPU, memory, selectors and taints are kube-scheduler's own matter. Cordoned nodes
    are left out.
    """
    with spoken_errors():
        vendors = served_vendors(device_config, enable_ascend, enable_iluvatar)
        policy = policy_of(node_policy, gpu_policy)
        if jsonl:
            _batch(Simulator(vendors=vendors, defaults=policy))
            return
        if not cluster or not file:
            raise WrongUsage("--cluster and -f are required, or --jsonl")
        pods = [pod for each in file for pod in pods_of(each, namespace)]
        _answer(pods, _cluster(cluster, pods, vendors), vendors, policy, output)


def _batch(simulator: Simulator) -> None:
    out = sys.stdout.buffer
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if line.strip():
            out.write(orjson.dumps(simulator.answer_line(line, number)) + b"\n")
            # The caller may wait for this answer before the next question.
            out.flush()


def policy_of(node: str, gpu: str) -> Policy:
    """Return the policies of the options.

    Raises: WrongUsage if a policy is unknown, because on a command line it is mistyped.
    """
    if node not in NODE_POLICIES:
        raise WrongUsage(f"--node-policy is {node!r}: use {one_of(NODE_POLICIES)}")
    policy = pod_policy({NODE_POLICY.name: node, GPU_POLICY.name: gpu})
    for entry in policy.gpu:
        if entry and entry not in CARD_POLICIES:
            raise WrongUsage(
                f"--gpu-policy has {entry!r}: use a comma list of {', '.join(CARD_POLICIES)}"
            )
    return policy


def _cluster(source: str, asking: list[Json], vendors: Vendors) -> Cluster:
    items = items_of(read_text(source), source)
    nodes = [item for item in items if item.get("kind") == "Node"]
    open_nodes = [node for node in nodes if not _is_cordoned(node)]
    cluster = read_cluster(
        open_nodes,
        (item for item in items if item.get("kind") == "Pod"),
        vendors,
        asking=asking,
    )
    if not nodes:
        raise InvalidRequest(
            f"{source} has no Node: use the output of kubectl get nodes,pods -A -o json"
        )
    closed = tuple(
        f"node {node['metadata']['name']} is cordoned: kube-scheduler offers it to no pod"
        for node in nodes
        if _is_cordoned(node)
    )
    return replace(cluster, problems=(*cluster.problems, *closed))


def _is_cordoned(node: Json) -> bool:
    check_node(node)
    spec = node.get("spec")
    return isinstance(spec, dict) and bool(spec.get("unschedulable"))


def items_of(text: str, source: str) -> list[Json]:
    """Return the objects of a List, or of a plain JSON list.

    Raises: InvalidRequest if the text is neither.
    """
    try:
        document = json.loads(text)
    except ValueError:
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as exc:
            raise InvalidRequest(f"{source} is neither JSON nor YAML") from exc
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest(
            f"{source} is not a List of nodes and pods: use the output of "
            "kubectl get nodes,pods -A -o json"
        )
    return items


def pods_of(source: str, namespace: str) -> list[Json]:
    """Return the pods of a manifest, printing the names of other objects.

    Raises: InvalidRequest if the file is not a manifest.
    """
    manifest = manifest_of(source, namespace)
    for name in manifest.left_out:
        console.print(f"{name} skipped: not a pod or a workload", style="yellow")
    return list(manifest.pods)


def manifest_of(source: str, namespace: str) -> Manifest:
    """Return the objects of a file. Raises: InvalidRequest if it is no manifest, or empty."""
    manifest = read_manifest(read_text(source), source=source, namespace=namespace)
    if not manifest.pods and not manifest.left_out:
        raise InvalidRequest(f"{source} has no Kubernetes object")
    return manifest


def _answer(
    pods: list[Json], cluster: Cluster, vendors: Vendors, policy: Policy, output: Output
) -> None:
    answers = list(plan(pods, cluster, vendors, now=datetime.now(UTC), defaults=policy))
    if output is Output.JSON:
        items = [answer.as_json() for answer in answers]
        console.print_json(data={"items": items, "problems": list(cluster.problems)})
        return
    for problem in cluster.problems:
        console.print(f"skipped: {problem}", style="yellow", highlight=False)
    for answer in answers:
        if not answer.verdict.error and not answer.verdict.unfiltered:
            console.print(verdict_table(answer, cluster))
        for line in as_text(answer):
            console.print(line, highlight=False, markup=False)


ConfigFile = Annotated[
    Path | None,
    typer.Option("--device-config", help="HAMi's device-config.yaml (default: its own values)"),
]
Ascend = Annotated[
    bool, typer.Option("--enable-ascend", help="also serve Ascend cards, as in HAMi")
]
Iluvatar = Annotated[
    bool, typer.Option("--enable-iluvatar", help="also serve Iluvatar cards, as in HAMi")
]


def served_vendors(config: Path | None, ascend: bool, iluvatar: bool) -> Vendors:
    """Read the device configuration. Raises: InvalidRequest."""
    return Vendors.from_config(
        deviceconfig.load(config), enable_ascend=ascend, enable_iluvatar=iluvatar
    )
