"""Input of the preemption planner, read from pods, PodDisruptionBudgets and namespaces.

A pod is shielded where kube-scheduler's preemption, a person or its controller would undo or forbid
its end: mirror pods, DaemonSets' pods, critical pods, protected namespaces, long grace periods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from hamicommon.domain.allocations import AllocationState, Origin
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.explain.held_rows import holdings_of
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.pod_groups import group_of
from hamicommon.k8s.pod_object import KUEUE_WORKLOAD_NAME, is_managed_by_kueue, owner_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.preemption.holdings import Holder

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror pod; only the pod's kubelet can stop it."""
PREEMPTIBLE_LABEL = "hami.io/preemptible"
"""Label of a Namespace; `false`: none of its pods is preempted."""
SYSTEM_PRIORITY = 2_000_000_000
"""Value of Kubernetes' SystemCriticalPriority."""
MAX_GRACE_S = 600
"""Maximum grace period of a victim: a pending pod does not wait longer for its cards."""
OVERDUE = "that are deleted and have not ended within their grace period"
MAX_OVERDUE_S = 30.0
"""Time that a deleted pod may exceed its grace period before its cards are not counted on.

A pod that exists for longer has a finalizer, or its node is silent; the programs of one that is
gone for so long may still run.
"""

_METADATA = ("creationTimestamp", "deletionTimestamp", "labels", "ownerReferences")
_SPEC = ("priority", "schedulingGroup", "terminationGracePeriodSeconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Priority of the pending pod, and whether its PriorityClass permits preemption."""

    priority: int
    may_preempt: bool = True


def wish_of(pod: JsonMapping, classes: Iterable[JsonMapping]) -> Wish:
    """Return the priority that admission gives the pod, or gave it.

    Raises: InvalidRequest when its PriorityClass does not exist.
    """
    spec = pod.get("spec") or {}
    by_name = {each["metadata"]["name"]: each for each in classes}
    name = spec.get("priorityClassName") or ""
    if name and name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        raise InvalidRequest(
            f"spec.priorityClassName is {name!r}, and no PriorityClass has that name; there are: "
            f"{known}"
        )
    chosen = [by_name[name]] if name else [c for c in by_name.values() if c.get("globalDefault")]
    found: JsonMapping = min(chosen, key=lambda each: int(each["value"]), default={"value": 0})
    priority = spec.get("priority")
    policy = spec.get("preemptionPolicy") or found.get("preemptionPolicy")
    return Wish(
        priority=int(found["value"]) if priority is None else int(priority),
        may_preempt=policy != "Never",
    )


def budget_room(budgets: Iterable[JsonMapping]) -> dict[str, int]:
    """Return how many evictions each PodDisruptionBudget (`namespace/name`) allows now."""
    return {
        _full_name(each): int((each.get("status") or {}).get("disruptionsAllowed") or 0)
        for each in budgets
    }


def protected_namespaces(
    namespaces: Iterable[JsonMapping], named: Collection[str]
) -> frozenset[str]:
    """Return the namespaces whose pods are never preempted: from the settings, and by label."""
    labelled = {
        each["metadata"]["name"]
        for each in namespaces
        if (each["metadata"].get("labels") or {}).get(PREEMPTIBLE_LABEL) == "false"
    }
    return frozenset(named) | labelled


def for_holders(pod: JsonMapping) -> Json:
    """Return the fields of a pod that `holders_of` reads."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    kept["annotations"] = {
        key: "" for key in (MIRROR, KUEUE_WORKLOAD_NAME) if key in annotations_of(pod)
    }
    return {"metadata": kept, "spec": {key: spec[key] for key in _SPEC if key in spec}}


def holders_of(
    rows: Iterable[Mapping[str, Any]],
    pods: Mapping[PodUid, JsonMapping],
    budgets: Iterable[JsonMapping],
    protected: Collection[str],
    *,
    now: datetime,
    min_runtime_s: float = 0.0,
) -> list[Holder]:
    """Return every pod that holds cards, with the reason if it must not be preempted.

    Args:
        rows: slices of live grants, one a row, those of a pod together (`PostgresQueries.held_at`).
        pods: the pods that the API server has, by uid.
        budgets: PodDisruptionBudgets of the cluster.
        protected: namespaces whose pods may not end.
        now: for their ages.
        min_runtime_s: pods that are younger may not end.
    """
    by_namespace: defaultdict[str, list[JsonMapping]] = defaultdict(list)
    for each in budgets:
        by_namespace[each["metadata"]["namespace"]].append(each)
    found = []
    for (uid, node), slices in groupby(rows, key=lambda row: (row["pod_uid"], row["node"])):
        mine = list(slices)
        holder = _holder(PodUid(uid), NodeName(node), mine, pods, by_namespace, protected)
        age_s = (
            float("inf") if holder.started_at is None else (now - holder.started_at).total_seconds()
        )
        if holder.is_ending and _is_overdue(pods.get(holder.uid), mine[0]["releasing_at"], now):
            holder = replace(holder, is_ending=False, shield=OVERDUE)
        if age_s < min_runtime_s and not (holder.shield or holder.is_room):
            holder = replace(holder, shield=f"that are younger than {min_runtime_s:g} s")
        found.append(holder)
    return found


def _is_overdue(pod: JsonMapping | None, releasing_at: datetime | None, now: datetime) -> bool:
    """Return whether a deleted pod's cards are overdue: they should have become free by now."""
    ends_at = releasing_at if pod is None else _time(pod["metadata"]["deletionTimestamp"])
    return ends_at is not None and (now - ends_at).total_seconds() > MAX_OVERDUE_S


def _holder(
    uid: PodUid,
    node: NodeName,
    slices: Sequence[Mapping[str, Any]],
    pods: Mapping[PodUid, JsonMapping],
    budgets: Mapping[str, Sequence[JsonMapping]],
    protected: Collection[str],
) -> Holder:
    namespace, pod = slices[0]["namespace"], pods.get(uid)
    name = f"{namespace}/{slices[0]['pod_name']}"
    held = holdings_of(name, node, slices)
    if pod is None:
        # Ours is gone, and its node has not reported so; the others are not watched.
        is_watched = slices[0]["origin"] in (Origin.SCHEDULED, Origin.ADOPTED)
        is_ending = is_watched or slices[0]["state"] == AllocationState.RELEASING
        return Holder(
            uid=uid,
            pod=name,
            node=node,
            priority=0,
            held=held,
            shield="" if is_ending else "that came past this scheduler",
            is_ending=is_ending,
            allocation_id=AllocationId(slices[0]["allocation_id"]),
        )
    owner = owner_of(pod)
    kind, owned_by = (
        ("Deployment", owner.deployment) if owner.deployment else (owner.kind, owner.name)
    )
    labels = pod["metadata"].get("labels") or {}
    is_room = slices[0]["state"] == AllocationState.RESERVED
    return Holder(
        uid=uid,
        pod=name,
        node=node,
        priority=int((pod.get("spec") or {}).get("priority") or 0),
        held=held,
        started_at=_time(pod["metadata"].get("creationTimestamp")),
        owner=f"{kind} {owned_by}" if kind else "",
        budgets=tuple(
            _full_name(each)
            for each in budgets.get(namespace, ())
            if not is_room and is_selected((each.get("spec") or {}).get("selector"), labels)
        ),
        shield="" if is_room else _shield(pod, slices[0], namespace, kind, protected),
        is_ending=bool(pod["metadata"].get("deletionTimestamp")) and not is_room,
        allocation_id=AllocationId(slices[0]["allocation_id"]),
        is_room=is_room,
    )


def _shield(
    pod: JsonMapping,
    grant: Mapping[str, Any],
    namespace: str,
    owner_kind: str,
    protected: Collection[str],
) -> str:
    spec = pod.get("spec") or {}
    if namespace in protected:
        return f"in namespace {namespace}, which is protected"
    if MIRROR in annotations_of(pod):
        return "that are static pods"
    if owner_kind == "DaemonSet":
        return "of DaemonSets"
    if int(spec.get("priority") or 0) >= SYSTEM_PRIORITY:
        return "that are critical to the cluster"
    if int(spec.get("terminationGracePeriodSeconds") or 0) > MAX_GRACE_S:
        return f"whose grace period is longer than {MAX_GRACE_S} s"
    if group_of(pod) is not None:
        return "of groups that start together"
    if is_managed_by_kueue(pod):
        return "that Kueue manages"
    if grant["origin"] == Origin.CLAIM:
        return "with cards by ResourceClaim"
    if grant["state"] not in (AllocationState.BOUND, AllocationState.ALLOCATED):
        return "that are starting"
    return ""


def is_selected(selector: JsonMapping | None, labels: Mapping[str, str]) -> bool:
    """Return whether a metav1.LabelSelector selects the labels; None selects nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(labels, each) for each in selector.get("matchExpressions") or ()
    )


def _meets(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _full_name(item: JsonMapping) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
