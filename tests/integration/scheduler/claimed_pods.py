"""Pods with ResourceClaims for the scheduler's tests.

The emulated API server has no resource.k8s.io: claims come from a table here.
"""

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesClaimApi
from hamicommon.dra.devices import DRIVER, device_name
from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import World

Claims = dict[str, Json]
"""By name."""


def known_claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Return the claims of the API server, with reads and writes led to them."""
    known: Claims = {}

    async def get(_self: KubernetesClaimApi, namespace: str, name: str) -> Json:
        if name not in known:
            raise NotFound(f"resourceclaims {namespace}/{name} not found")
        return known[name]

    async def set_status(_self: KubernetesClaimApi, claim: Json, status: Json) -> Json:
        name = claim["metadata"]["name"]
        known[name] = {**claim, "status": {**claim["status"], **status}}
        return known[name]

    monkeypatch.setattr(KubernetesClaimApi, "get", get)
    monkeypatch.setattr(KubernetesClaimApi, "set_status", set_status)
    return known


async def pod_of(
    world: World,
    claims: Claims,
    name: str,
    *cards: str,
    mib: int = 4096,
    limits: Json | None = None,
    bound: bool = True,
) -> Json:
    """A pod on n1 (or on its way there) whose claim was allocated a part of each card."""
    container: Json = {
        "name": "main",
        "image": "none",
        "resources": {"claims": [{"name": "gpu"}], "limits": limits or {}},
    }
    pod = await world.api.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "containers": [container],
            },
        },
    )
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if bound:
        await world.api.create(
            f"{path}/binding", {"metadata": {"name": metadata["name"]}, "target": {"name": "n1"}}
        )
    claims[name] = {
        "metadata": {"namespace": metadata["namespace"], "name": name, "uid": f"uid-{name}"},
        "status": {
            "reservedFor": [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}],
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": f"r{number}",
                            "driver": DRIVER,
                            "pool": "n1",
                            "device": device_name(card),
                            "shareID": f"share-{number}",
                            "consumedCapacity": {"memory": f"{mib}Mi", "cores": "30"},
                        }
                        for number, card in enumerate(cards)
                    ]
                }
            },
        },
    }
    return await world.read(pod)
