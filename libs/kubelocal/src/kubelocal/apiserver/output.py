"""Encode stored objects: with their kind, as a watch line, or as rows of a `Table`.

kubectl requests a Table to print it; a kind without its own columns shows name and age. Source:
kubernetes `pkg/printers/internalversion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resources import Resource
from kubelocal.apiserver.storage.objects import StoredObject
from kubelocal.apiserver.storage.store import WatchChange


def whole(resource: Resource, stored: StoredObject) -> bytes:
    """Return the object with its kind and apiVersion."""
    return _head(resource) + stored.raw[1:]


def line(resource: Resource, change: WatchChange, kind: str) -> bytes:
    """Return the watch line of a change, encoded once for all watchers."""
    encoded = change.lines.get(kind)
    if encoded is None:
        # If the object leaves a watcher's selection, the real server sends the previous state; the
        # version of the object is that of the change in both cases.
        encoded = change.lines[kind] = watch_line(kind, whole(resource, change.now))
    return encoded


def watch_line(kind: str, whole_object: bytes) -> bytes:
    """Return one line of a watch: the event of an object."""
    return b'{"type":"' + kind.encode() + b'","object":' + whole_object + b"}\n"


@cache
def _head(resource: Resource) -> bytes:
    kind = orjson.dumps({"kind": resource.kind, "apiVersion": resource.api_version})
    return kind[:-1] + b","


_NONE = "<none>"
_UNKNOWN = "<unknown>"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of `kubectl get`; a `wide` one is shown only by `-o wide`."""

    name: str
    cell: Callable[[Json], Any]
    kind: str = "string"
    wide: bool = False

    def definition(self) -> Json:
        """Return the column's definition in a Table."""
        return {
            "name": self.name,
            "type": self.kind,
            "format": "name" if self.name == "Name" else "",
            "description": f"{self.name} of the object",
            "priority": int(self.wide),
        }


def age(timestamp: str | None) -> str:
    """Return the time since the timestamp as kubectl prints it: `5m`, `3h`, `2d`."""
    if not timestamp:
        return _UNKNOWN
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds())
    if seconds < 0:
        return "0s"
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"


def dig(*path: str, absent: Any = _NONE) -> Callable[[Json], Any]:
    """Return the value at a path of names, or `absent`."""

    def cell(body: Json) -> Any:
        value: Any = body
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return absent if value in (None, "") else value

    return cell


def _ready(pod: Json) -> str:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ready = sum(bool(each.get("ready")) for each in statuses)
    return f"{ready}/{len(pod.get('spec', {}).get('containers', []))}"


def pod_status(pod: Json) -> str:
    """Return the pod's STATUS column: the most informative reason."""
    status = pod.get("status", {})
    reason: str = status.get("reason") or status.get("phase", "")
    if any(gate for gate in pod.get("spec", {}).get("schedulingGates", [])):
        reason = "SchedulingGated"
    running = False
    for each in status.get("containerStatuses", []):
        state = each.get("state", {})
        if waiting := state.get("waiting", {}).get("reason"):
            reason = waiting
        elif ended := state.get("terminated"):
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
        elif "running" in state and each.get("ready"):
            running = True
    if reason == "Completed" and running:
        reason = "Running"
    if "deletionTimestamp" in pod["metadata"]:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _restarts(pod: Json) -> int:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return sum(int(each.get("restartCount", 0)) for each in statuses)


def _node_status(node: Json) -> str:
    conditions = node.get("status", {}).get("conditions", [])
    ready = next((c for c in conditions if c.get("type") == "Ready"), None)
    states = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if node.get("spec", {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def _roles(node: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels", {})
    return ",".join(sorted(k[len(prefix) :] for k in labels if k.startswith(prefix))) or _NONE


def _address(kind: str) -> Callable[[Json], str]:
    def cell(node: Json) -> str:
        addresses = node.get("status", {}).get("addresses", [])
        return next((a["address"] for a in addresses if a.get("type") == kind), _NONE)

    return cell


def _last_seen(event: Json) -> str:
    series = event.get("series") or {}
    return age(
        event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    )


def _first_seen(event: Json) -> str:
    return age(event.get("firstTimestamp") or event.get("eventTime"))


def _involved_object(event: Json) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _source(event: Json) -> str:
    source = event.get("source", {})
    parts = (source.get("component") or event.get("reportingComponent", ""), source.get("host"))
    return ", ".join(part for part in parts if part)


def _of(have: tuple[str, ...], want: tuple[str, ...]) -> Callable[[Json], str]:
    return lambda body: f"{dig(*have, absent=0)(body)}/{dig(*want, absent=0)(body)}"


NAME = Column("Name", dig("metadata", "name"))
AGE = Column("Age", lambda body: age(body["metadata"].get("creationTimestamp")))
_STATUS, _SPEC = "status", "spec"

COLUMNS: dict[str, tuple[Column, ...]] = {
    "Pod": (
        NAME,
        Column("Ready", _ready),
        Column("Status", pod_status),
        Column("Restarts", _restarts, "integer"),
        AGE,
        Column("IP", dig(_STATUS, "podIP"), wide=True),
        Column("Node", dig(_SPEC, "nodeName"), wide=True),
        Column("Nominated Node", dig(_STATUS, "nominatedNodeName"), wide=True),
        Column("Readiness Gates", lambda body: _NONE, wide=True),
    ),
    "Node": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _roles),
        AGE,
        Column("Version", dig(_STATUS, "nodeInfo", "kubeletVersion", absent="")),
        Column("Internal-IP", _address("InternalIP"), wide=True),
        Column("External-IP", _address("ExternalIP"), wide=True),
        Column("OS-Image", dig(_STATUS, "nodeInfo", "osImage", absent=_UNKNOWN), wide=True),
        Column("Kernel-Version", dig(_STATUS, "nodeInfo", "kernelVersion"), wide=True),
        Column("Container-Runtime", dig(_STATUS, "nodeInfo", "containerRuntimeVersion"), wide=True),
    ),
    "Event": (
        Column("Last Seen", _last_seen),
        Column("Type", dig("type", absent="")),
        Column("Reason", dig("reason", absent="")),
        Column("Object", _involved_object),
        Column("Subobject", dig("involvedObject", "fieldPath", absent=""), wide=True),
        Column("Source", _source, wide=True),
        Column("Message", dig("message", absent="")),
        Column("First Seen", _first_seen, wide=True),
        Column("Count", dig("count", absent=1), "integer", wide=True),
        Column("Name", dig("metadata", "name"), wide=True),
    ),
    "Deployment": (
        NAME,
        Column("Ready", _of((_STATUS, "readyReplicas"), (_SPEC, "replicas"))),
        Column("Up-to-date", dig(_STATUS, "updatedReplicas", absent=0), "integer"),
        Column("Available", dig(_STATUS, "availableReplicas", absent=0), "integer"),
        AGE,
    ),
    "Job": (NAME, Column("Completions", _of((_STATUS, "succeeded"), (_SPEC, "completions"))), AGE),
}


def table(
    resource: Resource, objects: Iterable[StoredObject], meta: dict[str, str | int], include: str
) -> bytes:
    """Return a Table of the objects; `include`: None, Metadata (default) or Object."""
    columns = COLUMNS.get(resource.kind, (NAME, AGE))
    rows = []
    for stored in objects:
        body = stored.load()
        row: Json = {"cells": [column.cell(body) for column in columns]}
        if include != "None":
            row["object"] = _included_object(resource, body, include)
        rows.append(row)
    return orjson.dumps(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": [column.definition() for column in columns],
            "rows": rows,
        }
    )


def table_line(resource: Resource, change: WatchChange, kind: str, include: str) -> bytes:
    """Return the watch line of a change as a Table with one row."""
    meta: dict[str, str | int] = {"resourceVersion": str(change.now.version)}
    return watch_line(kind, table(resource, [change.now], meta, include))


def _included_object(resource: Resource, body: Json, include: str) -> Json:
    if include == "Object":
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        return head | body
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"],
    }
