"""Judge ephemeral containers that are added to a pod (`kubectl debug`).

Input: the pod as it will be and as it was. Output: the verdict. Pure. Ephemeral containers can't
ask for cards, but they share the pod's node and runtime: with a variable they would see every card,
without any limit. Only new ones are judged and edited, because the others can't be changed any
more.
"""

from __future__ import annotations

from hamicommon.admission.filling import editable
from hamicommon.admission.patches import diff
from hamicommon.admission.tampering.containers import objects
from hamicommon.admission.tampering.guard import Guard
from hamicommon.admission.tampering.settling import settle
from hamicommon.admission.verdicts import BAD_REQUEST, AdmissionResult, deny
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.vendors.pod_request import wants_devices

EPHEMERAL = "ephemeralContainers"


def review_ephemeral(pod: Json, before: Json, guard: Guard, namespace: str) -> AdmissionResult:
    """Judge the ephemeral containers that `pod` has and `before` does not have."""
    try:
        check_pod(pod)
    except InvalidRequest as exc:
        return deny(str(exc), "no-pod", code=BAD_REQUEST)
    old = before.get("spec")
    known = {
        str(container.get("name"))
        for container in objects(old.get(EPHEMERAL) if isinstance(old, dict) else None)
    }
    after = editable(pod)
    added = [
        index
        for index, container in enumerate(after["spec"].get(EPHEMERAL) or ())
        if str(container.get("name")) not in known
    ]
    for index in added:
        guard.hide_cards(after["spec"][EPHEMERAL][index])
    asks = wants_devices(pod, guard.vendors)
    standing = guard.policy.standing(namespace or (pod.get("metadata") or {}).get("namespace", ""))
    # Only the added containers: the others were judged when they were added.
    judged = {
        **after["spec"],
        "initContainers": [],
        "containers": [],
        EPHEMERAL: [
            container if index in added else {}
            for index, container in enumerate(after["spec"].get(EPHEMERAL) or ())
        ],
    }
    found = [
        each
        for each in guard.findings({**after, "spec": judged}, standing, wants=asks)
        if each.part == EPHEMERAL
    ]
    settled = settle(after, found, guard)
    if settled.refused is not None:
        return settled.refused
    return AdmissionResult(
        allowed=True,
        reason="asks-for-cards" if asks else "no-cards",
        patch=diff(pod, after),
        warnings=settled.warnings,
        audit=settled.audit,
    )
