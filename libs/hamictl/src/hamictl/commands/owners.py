"""Pods of a workload, for `hamictl explain deploy/NAME`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json, JsonMapping

from hamictl.output.records import Records
from hamictl.scheduler_client import SchedulerClient
from hamictl.target import Installation
from hamictl.view import cluster_state, lists

_APPS, _BATCH = "/apis/apps/v1", "/apis/batch/v1"
KINDS = {
    name: kind
    for kind, names in {
        ("Deployment", _APPS, "deployments"): ("deploy", "deployment", "deployments"),
        ("ReplicaSet", _APPS, "replicasets"): ("rs", "replicaset", "replicasets"),
        ("StatefulSet", _APPS, "statefulsets"): ("sts", "statefulset", "statefulsets"),
        ("DaemonSet", _APPS, "daemonsets"): ("ds", "daemonset", "daemonsets"),
        ("Job", _BATCH, "jobs"): ("job", "jobs"),
        ("CronJob", _BATCH, "cronjobs"): ("cj", "cronjob", "cronjobs"),
        ("ReplicationController", "/api/v1", "replicationcontrollers"): (
            *("rc", "replicationcontroller", "replicationcontrollers"),
        ),
    }.items()
    for name in names
}
"""Each name of a kind, as kubectl has them -> the kind, and where its objects are."""


def owner_of(given: str) -> tuple[str, str] | None:
    """(kind as written, name) of `deploy/train`; None for what names a pod."""
    kind, slash, name = given.partition("/")
    return (kind, name) if slash and name and kind.lower() in KINDS else None


async def pods_of_owner(target: Installation, kind: str, name: str, namespace: str) -> Records:
    """List a workload's pods, each with its slices or why it waits.

    Raises: NotFound where there is no such workload, or it has no pod; HamiError.
    """
    scheduler = SchedulerClient(target.need_scheduler())
    async with open_kube_api(target.need_kubeconfig()) as api:
        selectors = await _selectors(api, kind, name, namespace)
        states = await asyncio.gather(
            *(
                cluster_state.look(api, scheduler, namespace=namespace, selector=selector)
                for selector in selectors
            )
        )
        rows = [row for state in states for row in cluster_state.pod_rows(state)]
        if not rows:
            raise NotFound(await _why_none(api, kind, name, namespace))
    return lists.pods(rows, datetime.now(UTC).isoformat(timespec="seconds"))


async def _selectors(api: KubeApi, kind: str, name: str, namespace: str) -> list[str]:
    """Return the workload's pods; a CronJob's are those of its Jobs."""
    title, group, plural = KINDS[kind.lower()]
    folder = f"{group}/namespaces/{namespace}"
    try:
        owner = await api.get(f"{folder}/{plural}/{name}")
    except NotFound:
        raise NotFound(
            f"there is no {title} {namespace}/{name}; of a pod in a namespace {kind}: "
            f"hamictl explain {name} --namespace {kind}"
        ) from None
    if title != "CronJob":
        return [label_selector(owner)]
    jobs = (await api.get(f"{folder}/jobs")).get("items") or ()
    uid = owner["metadata"]["uid"]
    return [label_selector(job) for job in jobs if uid in _owner_uids(job)]


def _owner_uids(item: JsonMapping) -> Sequence[str]:
    return [str(each.get("uid")) for each in item["metadata"].get("ownerReferences") or ()]


def label_selector(owner: JsonMapping) -> str:
    """The workload's `spec.selector` as a query has it.

    >>> label_selector({"spec": {"selector": {"matchLabels": {"app": "a"}, "matchExpressions": [
    ...     {"key": "tier", "operator": "NotIn", "values": ["x", "y"]},
    ...     {"key": "old", "operator": "DoesNotExist"}]}}})
    'app=a,tier notin (x,y),!old'
    """
    selector: Json = (owner.get("spec") or {}).get("selector") or {}
    # A ReplicationController's is the labels themselves.
    plain = "matchLabels" not in selector and "matchExpressions" not in selector
    labels = selector if plain else selector.get("matchLabels") or {}
    return ",".join(
        [
            *(f"{key}={value}" for key, value in labels.items()),
            *map(_expression, () if plain else selector.get("matchExpressions") or ()),
        ]
    )


def _expression(each: dict[str, Any]) -> str:
    key, operator = each["key"], each["operator"]
    if operator in ("In", "NotIn"):
        return f"{key} {operator.lower()} ({','.join(each.get('values') or ())})"
    return key if operator == "Exists" else f"!{key}"


async def _why_none(api: KubeApi, kind: str, name: str, namespace: str) -> str:
    """The reason that its controller gave; a Deployment's pods are made by its ReplicaSet."""
    title = KINDS[kind.lower()][0]
    events = (await api.get(f"/api/v1/namespaces/{namespace}/events")).get("items") or ()
    refusals = [
        str(event.get("message", ""))
        for event in events
        if event.get("reason") == "FailedCreate"
        and str(event["involvedObject"].get("name", "")).startswith(name)
    ]
    why = f": its controller could not create one: {refusals[-1]}" if refusals else ""
    return f"{title} {namespace}/{name} has no pod{why}"
