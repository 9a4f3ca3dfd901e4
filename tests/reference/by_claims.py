"""The same pod by limits and by claims: where the ledger allocates, both get the same cards.

`.venv/bin/python -m tests.reference.by_claims FILE...` compares the pods of recorded cases (one of
`hamictl simulate --jsonl` in each line); the unit tests compare random ones.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hami_scheduler.placement.pod_requests import SHARED_MODES, PodRequests
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.requests import DeviceRequest, PodRequest
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.devices import DRIVER, PERCENT
from hamicommon.dra.requests import DEVICE_CLASS, claimed_slices
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json
from hamicommon.placement.engine import feasible
from hamicommon.simulation.cluster import read_cluster
from hamicommon.vendors.pod_request import DEFAULT_POLICY
from hamicommon.vendors.registry import Vendors

SAME = "same"
DIFFERENT = "different"


def compared(case: Json, vendors: Vendors) -> str:
    """`SAME`, `DIFFERENT` with what differs, or why the pod can't be asked for by claims."""
    pod = case["in"]["pod"]
    requests = PodRequests(vendors=vendors, defaults=DEFAULT_POLICY)
    try:
        limits = requests.of(pod)
    except InvalidRequest:
        return "refused by limits already"
    reason = obstacle(limits)
    if reason:
        return reason
    claims = claims_of(limits, "claim")
    slices = claimed_slices(with_claims(pod, claims), claims)
    by_claims = requests.for_cards(pod, slices.requests)
    cluster = read_cluster(case["in"]["nodes"], case["in"]["pods"], vendors, asking=[pod])
    # Cards in MIG mode are in no slice.
    chosen = {
        name: each if each.mode else replace(each, mode=SHARED_MODES)
        for name, each in limits.selections.items()
    }
    # By claims each container has its slices to the pod's end: a sidecar as an app container.
    containers = tuple(
        replace(each, role="app") if each.role == "sidecar" and each.requests else each
        for each in limits.containers
    )
    asked = replace(limits, selections=chosen, containers=containers)
    own = feasible(asked, cluster.view, cluster.nodes)
    other = feasible(by_claims, cluster.view, cluster.nodes)
    if (own.placements, list(own.placements)) == (other.placements, list(other.placements)):
        return SAME
    return f"{DIFFERENT}: {own.placements} by limits, {other.placements} by claims"


def obstacle(request: PodRequest) -> str:
    """Why no claim asks for this; empty: one does."""
    for container in request.containers:
        for each in container.requests:
            if each.vendor != VENDOR:
                return "cards of other vendors"
            if each.traits:
                return "traits: " + ", ".join(sorted(each.traits))
            if container.role == "init":
                return "an init container's slice, which a pod with claims keeps to its end"
            if each.count > 32:
                return "more cards than a claim has"
    return "" if request.wants_devices else "no card"


def claims_of(request: PodRequest, prefix: str) -> Json:
    """A claim for each container that asks for cards, by the container's number."""
    return {
        str(number): claim_of(f"{prefix}-{number}", each)
        for number, container in enumerate(request.containers)
        for each in container.requests
    }


def claim_of(name: str, each: DeviceRequest) -> Json:
    """A claim of what a container asks for by limits."""
    capacity = {"cores": str(min(each.core_percent, 100))}
    config: list[Json] = []
    if each.memory_mib:
        capacity["memory"] = f"{each.memory_mib}Mi"
    if each.memory_percent is not None or not each.memory_mib:
        percent = 100 if each.memory_percent is None else each.memory_percent
        config = [{"opaque": {"driver": DRIVER, "parameters": {PERCENT: percent}}}]
    exactly = {
        "deviceClassName": DEVICE_CLASS,
        "count": each.count,
        "capacity": {"requests": capacity},
    }
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}},
    }


def with_claims(pod: Json, claims: Json) -> Json:
    """The pod, whose containers use `claims_of` its limits in their place."""
    changed: Json = json.loads(json.dumps(pod))
    for number, (_, container) in enumerate(containers_of(changed)):
        held = [{"name": str(number)}] if str(number) in claims else []
        container["resources"] = {"claims": held}
    changed["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimName": claim["metadata"]["name"]}
        for name, claim in claims.items()
    ]
    return changed


def _cases(paths: list[str]) -> Iterator[Json]:
    for path in paths:
        for line in Path(path).read_text().splitlines():
            yield json.loads(line)


def main() -> int:
    """Prints how many were the same, and why others were not compared."""
    vendors = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
    found = Counter(compared(case, vendors) for case in _cases(sys.argv[1:]))
    for outcome, count in found.most_common():
        sys.stdout.write(f"{count:6}  {outcome}\n")
    return any(outcome.startswith(DIFFERENT) for outcome in found)


if __name__ == "__main__":
    sys.exit(main())
