"""Kueue's Workloads: the cards that their pods request, and the states of our admission check.

Pure. The amounts are those that admission computes from each pod set's template, so they are right
where Kueue's own count is not. Nodes are selected only by labels and taints; a host's CPU is not
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from hamicommon.admission.pod_review import look_at, relevant
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.scaling.node_types import labels_of
from hamicommon.vendors.pod_request import pod_policy

MAX_PODS = 1000
"""Maximum pods of a Workload that are checked; more would delay other decisions for seconds."""

State = Literal["Pending", "Ready", "Retry", "Rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Pods that are created from one pod template and start together."""

    name: str
    members: tuple[PodRequest, ...]
    spec: JsonMapping
    """Spec of the pod template."""
    flavors: frozenset[str]
    """Names of the ResourceFlavors that Kueue assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Answer of the admission check to one Workload."""

    state: State
    message: str
    booked: bool = False
    """Whether cards are reserved for the Workload's pods for a while."""


def check_state(workload: JsonMapping, checks: Iterable[str]) -> Json | None:
    """Return the state of the first of these admission checks that the Workload has to pass."""
    wanted = set(checks)
    states = (workload.get("status") or {}).get("admissionChecks") or ()
    return next((state for state in states if state["name"] in wanted), None)


def quota_held_since(workload: JsonMapping) -> datetime | None:
    """Return the time since which the Workload has its quota reserved.

    None if it has none, or ended.
    """
    conditions = {
        each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()
    }
    if conditions.get("Finished", {}).get("status") == "True":
        return None
    reserved = conditions.get("QuotaReserved") or {}
    if reserved.get("status") != "True" or (workload.get("spec") or {}).get("active") is False:
        return None
    return datetime.fromisoformat(reserved["lastTransitionTime"])


def wait_at_kueue(workload: JsonMapping) -> str:
    """Return why a Workload with reserved quota does not start.

    Empty if it has none, or may start.
    """
    since, status = quota_held_since(workload), workload.get("status") or {}
    admitted = [each for each in status.get("conditions") or () if each["type"] == "Admitted"]
    if since is None or any(each["status"] == "True" for each in admitted):
        return ""
    checks = [each for each in status.get("admissionChecks") or () if each["state"] != "Ready"]
    why = "; ".join(f"{each['name']} is {each['state']}: {each['message']}" for each in checks)
    return f"at Kueue, quota held since {since:%Y-%m-%d %H:%M:%S}" + (f"; {why}" if why else "")


def pod_counts(workload: JsonMapping) -> dict[str, int]:
    """Return the number of pods of each pod set, as Kueue admitted them."""
    assigned = _assignments(workload)
    return {
        each["name"]: assigned.get(each["name"], {}).get("count", each.get("count", 1))
        for each in workload["spec"]["podSets"]
    }


def _assignments(workload: JsonMapping) -> dict[str, JsonMapping]:
    admission = (workload.get("status") or {}).get("admission") or {}
    return {each["name"]: each for each in admission.get("podSetAssignments") or ()}


def pod_sets(workload: JsonMapping, rules: AdmissionRules, defaults: Policy) -> list[PodSet]:
    """Return the pod sets that request cards, with the values that admission adds to their pods.

    Raises: InvalidRequest with admission's own sentence where it would refuse the pods.
    """
    metadata, assigned, counts = workload["metadata"], _assignments(workload), pod_counts(workload)
    if sum(counts.values()) > MAX_PODS:
        raise InvalidRequest(
            f"the workload has {sum(counts.values())} pods: this check judges at most {MAX_PODS}; "
            "use a queue without it"
        )
    guard = Guard.of(rules.vendors, rules.tampering)
    standing = rules.tampering.standing(metadata["namespace"])
    found = []
    for one in workload["spec"]["podSets"]:
        name, template = one["name"], one["template"]
        pod: Json = {
            "metadata": {**(template.get("metadata") or {}), "namespace": metadata["namespace"]},
            "spec": template["spec"],
        }
        look = look_at(relevant(pod, guard), rules, standing)
        if look.verdict is not None and not look.verdict.allowed:
            raise InvalidRequest(f"pod set {name}: {look.verdict.message}")
        if look.request is None or not counts[name]:
            continue
        request = replace(look.request, policy=pod_policy(annotations_of(pod), defaults))
        found.append(
            PodSet(
                name=name,
                members=tuple(
                    replace(
                        request,
                        uid=PodUid(f"{metadata['uid']}.{name}.{number}"),
                        name=f"{metadata['name']}/{name}/{number}",
                    )
                    for number in range(counts[name])
                ),
                spec=template["spec"],
                flavors=frozenset((assigned.get(name, {}).get("flavors") or {}).values()),
            )
        )
    return found


def nodes_for(
    pods: PodSet, nodes: Iterable[JsonMapping], flavor_labels: Mapping[str, str]
) -> frozenset[NodeName]:
    """Return the nodes that the pods' node selector, resource flavors and tolerations allow."""
    wanted = {**(pods.spec.get("nodeSelector") or {}), **flavor_labels}
    tolerations = pods.spec.get("tolerations") or ()
    return frozenset(
        NodeName(node["metadata"]["name"])
        for node in nodes
        if wanted.items() <= labels_of(dict(node)).items()
        and all(
            taint.get("effect") == "PreferNoSchedule"
            or any(_tolerates(each, taint) for each in tolerations)
            for taint in (node.get("spec") or {}).get("taints") or ()
        )
    )


def _tolerates(toleration: JsonMapping, taint: JsonMapping) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator") == "Exists":
        return key in ("", taint["key"])
    return key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def with_verdict(
    workload: JsonMapping,
    check: str,
    verdict: Verdict,
    *,
    now: datetime,
    requeue_s: float,
    annotation: str,
) -> Json:
    """Return a patch of the Workload's status; the API server refuses it after other changes."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    states = []
    for state in workload["status"]["admissionChecks"]:
        if state["name"] == check:
            moved = state["state"] != verdict.state
            state = {
                **state,
                "state": verdict.state,
                "message": verdict.message,
                "lastTransitionTime": moment if moved else state["lastTransitionTime"],
            }
            if verdict.state == "Retry":
                state["requeueAfterSeconds"] = int(requeue_s)
            if verdict.booked:
                state["podSetUpdates"] = [
                    {"name": each["name"], "annotations": {annotation: workload["metadata"]["uid"]}}
                    for each in workload["spec"]["podSets"]
                ]
        states.append(state)
    return {
        "metadata": {"resourceVersion": workload["metadata"]["resourceVersion"]},
        "status": {"admissionChecks": states},
    }
