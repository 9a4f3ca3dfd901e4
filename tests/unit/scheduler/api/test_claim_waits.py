"""`GET /v1/pods-by-claims`: pods that wait for kube-scheduler to allocate their claims."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from hami_scheduler.api.claim_waits import PodsByClaims
from hami_scheduler.api.v1 import operator_routes
from hamicommon.errors import Forbidden, NotFound
from hamicommon.k8s.types import Json

WHY = "0/2 nodes are available: 2 cannot allocate all claims."
GIB = 2**30


def a_pod(name: str, claim: str | None = None, **changes: Any) -> Json:
    """Waits for a claim of its name, or one of a template that is not made yet."""
    from_template = {"resourceClaimTemplateName": "a-slice"}
    source = {"resourceClaimName": claim} if claim else from_template
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-26T20:00:00Z",
    }
    condition = {"type": "PodScheduled", "status": "False", "message": WHY}
    return {
        "metadata": metadata | changes.pop("metadata", {}),
        "spec": {
            "resourceClaims": [{"name": "card", **source}],
            "containers": [{"name": "c", "resources": {"claims": [{"name": "card"}]}}],
            **changes.pop("spec", {}),
        },
        "status": {"phase": "Pending", "conditions": [condition]} | changes.pop("status", {}),
    }


def a_claim(name: str, device_class: str = "gpu.hami.io", **exactly: Any) -> Json:
    capacity = {"requests": {"memory": "4096Mi", "cores": "30"}}
    wanted = {"deviceClassName": device_class, "capacity": capacity, **exactly}
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}},
    }


class Claims:
    def __init__(self, *claims: Json, error: Exception | None = None) -> None:
        self._known = {claim["metadata"]["name"]: claim for claim in claims}
        self._error = error

    async def get(self, _namespace: str, name: str) -> Json:
        if self._error is not None:
            raise self._error
        if name not in self._known:
            raise NotFound(f"resourceclaims {name} not found")
        return self._known[name]


async def waiting(pods: list[Json], claims: Claims, query: str = "") -> list[Json]:
    app = FastAPI()
    service = SimpleNamespace(by_claims=PodsByClaims(lambda: pods, claims))
    app.include_router(operator_routes(cast(Any, service)))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        answer = await client.get(f"/v1/pods-by-claims{query}")
    assert answer.status_code == 200
    items: list[Json] = answer.json()["items"]
    return items


async def test_a_pod_is_listed_with_what_it_asks_for_and_kube_schedulers_reason() -> None:
    [found] = await waiting([a_pod("train", "slice")], Claims(a_claim("slice", count=2)))

    assert found == {
        "since_at": "2026-11-26T20:00:00Z",
        "pod_uid": "uid-train",
        "namespace": "default",
        "pod_name": "train",
        "card_count": 2,
        "memory_bytes": 4 * GIB,
        "memory_ratio": None,
        "core_ratio": 0.3,
        "reason_code": "ResourceClaims",
        "summary": f"kube-scheduler: {WHY}",
    }


async def test_what_a_claim_does_not_state_is_unknown_and_not_nothing() -> None:
    claim = a_claim("slice", allocationMode="All")

    [found] = await waiting([a_pod("train", "slice")], Claims(claim))

    assert [found[key] for key in ("card_count", "memory_bytes", "core_ratio")] == [None] * 3


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("other", "network"),
        a_pod("gone", "deleted-claim"),
        a_pod("bound", "slice", spec={"nodeName": "n1"}),
        a_pod("gated", "slice", spec={"schedulingGates": [{"name": "wait"}]}),
        a_pod("over", "slice", status={"phase": "Failed"}),
        a_pod("leaving", "slice", metadata={"deletionTimestamp": "2026-11-26T20:01:00Z"}),
        a_pod("plain", spec={"resourceClaims": []}),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
async def test_a_pod_that_waits_for_nothing_of_ours_is_not_listed(pod: Json) -> None:
    claims = Claims(a_claim("slice"), a_claim("network", "nic.example.com"))

    assert await waiting([pod], claims) == []


async def test_a_converted_pod_is_listed_before_its_claim_is_made() -> None:
    shape = {"annotations": {"hami.io/claim-shape": "{}"}}
    pod = a_pod("converted", metadata=shape, status={"conditions": []})

    [found] = await waiting([pod], Claims())

    assert found["summary"] == "kube-scheduler has not answered yet"
    assert found["card_count"] is None


async def test_the_oldest_come_first_and_of_one_namespace_if_asked() -> None:
    pods = [
        a_pod("young", "slice", metadata={"creationTimestamp": "2026-11-26T21:00:00Z"}),
        a_pod("old", "slice"),
        a_pod("elsewhere", "slice", metadata={"namespace": "nlp"}),
    ]

    every = await waiting(pods, Claims(a_claim("slice")))
    some = await waiting(pods, Claims(a_claim("slice")), "?namespace=nlp")

    assert [row["pod_name"] for row in every] == ["elsewhere", "old", "young"]
    assert [row["pod_name"] for row in some] == ["elsewhere"]


async def test_where_claims_may_not_be_read_there_are_none_of_ours() -> None:
    claims = Claims(error=Forbidden("may not get resourceclaims"))

    assert await waiting([a_pod("train", "slice")], claims) == []
