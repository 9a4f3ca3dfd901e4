"""A claim's grant at /bind, on a real control plane whose nodes are played: kube-scheduler has
allocated by a ResourceSlice that is older than what pods with limits have taken since."""

import time
from collections.abc import AsyncIterator

import asyncpg
import pytest
from hamicommon.k8s.types import Json

from bench.pods.agreement import differences
from bench.pods.claims import ClaimNodes
from bench.pods.played import equal_nodes
from bench.pods.system import SCHEDULER, Bench, Wanted, system
from tests import measured
from tests.control_plane import Assets
from tests.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
MAX_MIB = 60_000


@pytest.fixture
async def bench(kubernetes_assets: Assets) -> AsyncIterator[Bench]:
    """Two nodes of one card."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    nodes = equal_nodes(["node-0", "node-1"], cards=1)
    async with system(Wanted(cards=nodes, late=True, claims=True)) as running:
        yield running


def by_limits(name: str, node: str) -> Json:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(MAX_MIB)}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": SCHEDULER,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        },
    }


def by_claim(name: str) -> Json:
    """Build a pod by claim; its limit of 0 cards has kube-scheduler ask our extender."""
    resources = {"claims": [{"name": "card"}], "limits": {"nvidia.com/gpu": "0"}}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": SCHEDULER,
            "resourceClaims": [{"name": "card", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    }


async def create(bench: Bench, pod: Json) -> str:
    return str((await bench.api.create(PODS, pod))["metadata"]["uid"])


async def test_a_claim_on_a_card_that_is_full_by_limits_is_refused_and_goes_elsewhere(
    bench: Bench,
) -> None:
    nodes = bench.played
    assert isinstance(nodes, ClaimNodes)
    ledger = await asyncpg.connect(bench.servers.postgres)
    # The slices show whole cards until they are published again.
    full = await create(bench, by_limits("full", "node-0"))
    await eventually(lambda: bench.runs(full), "the pod with limits to run")
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "gpu.hami.io",
            "capacity": {"requests": {"memory": f"{MAX_MIB}Mi"}},
        },
    }
    await bench.api.create(
        CLAIMS, {"metadata": {"name": "late"}, "spec": {"devices": {"requests": [request]}}}
    )
    pod = by_claim("late")
    # As where kube-scheduler's scores prefer it.
    pod["spec"]["affinity"] = {"nodeAffinity": prefer_node("node-0")}
    late = await create(bench, pod)

    async def refusal() -> str:
        events = (await bench.api.get("/api/v1/namespaces/default/events"))["items"]
        return next((e["message"] for e in events if e["reason"] == "BindingFailed"), "")

    why = await eventually(refusal, "the reason on the pod")
    assert "memory" in why, why
    rows = "SELECT count(*) FROM allocations WHERE pod_uid = $1"
    assert await ledger.fetchval(rows, late) == 0
    await nodes.publish()
    began = time.monotonic()
    await eventually(lambda: bench.runs(late), "the pod with the claim to run")
    took_s = time.monotonic() - began

    assert (await bench.api.get(f"{PODS}/late"))["spec"]["nodeName"] == "node-1"
    assert nodes.refused == {}
    await bench.wait_until_idle()
    assert await differences(bench.api, bench.servers.postgres) == []
    await ledger.close()
    measured.note(f"follow: on another node {took_s:.1f} s after the slice showed the card full")


def prefer_node(node: str) -> Json:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In"}]}
    term["matchExpressions"][0]["values"] = [node]
    ask = {"weight": 100, "preference": term}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [ask]}
