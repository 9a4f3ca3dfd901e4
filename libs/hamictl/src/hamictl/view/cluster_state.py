"""Read the state of a cluster, and show it as rows and as the overview of `hamictl up`.

Pure but for `look`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hamicommon.errors import Unavailable
from hamicommon.k8s.annotations import BINDING
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import JsonMapping
from rich.console import Group
from rich.text import Text

from hamictl.scheduler_client import SchedulerClient
from hamictl.view.lists import cores, devices, memory, nodes, pods, records_table

MOUNTS_ANNOTATION = "hamictl.io/mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """State of a cluster; `missing` names what could not be read."""

    pods: Sequence[JsonMapping] = ()
    nodes: Sequence[JsonMapping] = ()
    devices: Sequence[JsonMapping] | None = ()
    """Cards; None if the scheduler did not answer."""
    allocations: Sequence[JsonMapping] = ()
    missing: Sequence[str] = field(default_factory=tuple)


async def look(
    api: KubeApi, scheduler: SchedulerClient, *, namespace: str = "", selector: str = ""
) -> ClusterSummary:
    """Read the state from the API server and the scheduler; failures are named in `missing`.

    Pods of `namespace`, where it is not empty; pods and nodes with labels that `selector` takes.
    """
    pods_path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    where = {"labelSelector": selector} if selector else {}
    answers = await asyncio.gather(
        api.get(pods_path, **where),
        api.get("/api/v1/nodes", **where),
        scheduler.rows("/v1/devices"),
        scheduler.rows("/v1/allocations", live="true"),
        return_exceptions=True,
    )
    missing = []
    for answer in answers:
        if isinstance(answer, Unavailable):
            missing.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
    pods, nodes, devices, allocations = (
        None if isinstance(answer, BaseException) else answer for answer in answers
    )
    return ClusterSummary(
        pods=(pods or {}).get("items", []) if isinstance(pods, dict) else [],
        nodes=(nodes or {}).get("items", []) if isinstance(nodes, dict) else [],
        devices=devices if isinstance(devices, list) else None,
        allocations=allocations if isinstance(allocations, list) else [],
        missing=tuple(missing),
    )


def node_rows(state: ClusterSummary) -> list[dict[str, Any]]:
    """Return rows of nodes, sorted by rack or zone; nodes without one are last."""
    by_node = cards_by_node(state)
    rows: list[dict[str, Any]] = [
        {
            "name": node["metadata"]["name"],
            "ready": _ready(node),
            "unschedulable": bool((node.get("spec") or {}).get("unschedulable")),
            "created_at": node["metadata"].get("creationTimestamp"),
            "allocatable": (node["status"].get("allocatable") or {}).get("nvidia.com/gpu"),
            "mounts": (node["metadata"].get("annotations") or {}).get(MOUNTS_ANNOTATION),
            **binding_row(node),
            **_cards(None if by_node is None else by_node.get(node["metadata"]["name"], [])),
        }
        for node in state.nodes
    ]
    return sorted(rows, key=lambda row: (not row["node_group"], row["node_group"] or ""))


def binding_row(node: JsonMapping) -> dict[str, str | None]:
    """Return the way in which a node's agent binds slices (`late` or `lock`), and the reason."""
    written = str((node["metadata"].get("annotations") or {}).get(BINDING) or "")
    way, _, reason = written.partition(": ")
    return {"binding": way or None, "binding_reason": reason or None}


def cards_by_node(state: ClusterSummary) -> dict[str, list[JsonMapping]] | None:
    """Return the cards by node; None if the scheduler did not answer."""
    if state.devices is None:
        return None
    found: dict[str, list[JsonMapping]] = {}
    for card in state.devices:
        if card.get("present", True):
            found.setdefault(str(card["node"]), []).append(card)
    return found


def _cards(cards: Sequence[JsonMapping] | None) -> dict[str, Any]:
    """Return counts and granted amounts of the node's cards; None is unknown."""
    names = (
        *("card_count", "held_card_count", "sick_card_count", "used_memory_mib", "memory_mib"),
        "node_group",
    )
    if cards is None:
        return dict.fromkeys(names)
    values = (
        len(cards),
        sum(bool(card["used_slots"]) for card in cards),
        sum(not card["healthy"] for card in cards),
        sum(card["used_memory_mib"] for card in cards),
        sum(card["memory_mib"] for card in cards),
        # A scheduler of an older version knows no groups.
        next((card.get("node_group") for card in cards), None),
    )
    return dict(zip(names, values, strict=True))


def pod_rows(state: ClusterSummary) -> list[dict[str, Any]]:
    """Return rows for `lists.pods`, in the order of creation."""
    held = {row["pod_uid"]: row for row in state.allocations}
    cards = {row["uuid"]: row["index"] for row in state.devices or ()}
    ordered = sorted(
        state.pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
    )
    return [
        {
            "name": f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}",
            "phase": phase(pod),
            "created_at": pod["metadata"]["creationTimestamp"],
            "node": (pod["spec"].get("nodeName") or ""),
            "detail": _detail(pod, held.get(pod["metadata"]["uid"]), cards),
            "namespace": pod["metadata"].get("namespace", ""),
            "pod_name": pod["metadata"]["name"],
            "pod_uid": pod["metadata"]["uid"],
            "devices": (held.get(pod["metadata"]["uid"]) or {}).get("devices", []),
        }
        for pod in ordered
    ]


def phase(pod: JsonMapping) -> str:
    """Return the phase as kubectl shows it: deletion and waiting containers take precedence."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return str(waiting["reason"])
    return str(status.get("reason") or status.get("phase") or "Unknown")


def why_waiting(pod: JsonMapping) -> str:
    """Return the message of the PodScheduled condition, or of the pod's status."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return str(status.get("message") or "")


def _detail(pod: JsonMapping, allocation: JsonMapping | None, cards: Mapping[str, int]) -> str:
    if allocation is not None and allocation["devices"]:
        slices = "; ".join(
            f"{share['container']}: {memory(share['memory_mib'])}, {cores(share['core_percent'])}"
            f" of card {cards.get(share['device_uuid'], '?')}"
            for share in allocation["devices"]
        )
        is_room = allocation["state"] == "reserved"
        return f"room on {allocation['node']}: {slices}" if is_room else slices
    return why_waiting(pod)


def _ready(node: JsonMapping) -> str | None:
    for condition in node["status"].get("conditions") or []:
        if condition.get("type") == "Ready":
            return str(condition.get("status"))
    return None


def board(state: ClusterSummary, described: Mapping[str, Any]) -> Group:
    """Return the overview of nodes, cards and pods."""
    parts: list[Any] = [
        records_table("Nodes", nodes(node_rows(state), None)),
        records_table("Cards", devices(state.devices or (), None)),
        records_table("Pods", pods(pod_rows(state), None)),
    ]
    parts += [Text(f"unavailable: {missing}", style="yellow") for missing in state.missing]
    parts.append(Text(look_next(described), style="dim"))
    return Group(*parts)


def look_next(described: Mapping[str, Any]) -> str:
    """Return the commands that show more."""
    return "\n".join(
        (
            f"pages   {described['pages_url']}   (on this machine only)",
            f"kubectl --kubeconfig {described['kubeconfig']} get pods -w",
            "hamictl explain too-much        why a pod waits",
            "hamictl history one-slice       what happened to its slices",
            "hamictl sql 'select * from allocations_at(now())'",
            f"metrics {described['metrics_url']}   traces {described['traces']}",
        )
    )
