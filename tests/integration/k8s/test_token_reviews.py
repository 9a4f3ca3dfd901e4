"""Owners of tokens, by a real API server (KUBEBUILDER_ASSETS names the folder)."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesTokenReviews
from hami_scheduler.bus.auth import Bearer
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.client import KubeApi, open_kube_api

from tests.control_plane import control_plane, find_assets

FOLDER = os.environ.get("KUBEBUILDER_ASSETS", "")

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="KUBEBUILDER_ASSETS is not set"),
]
NAMESPACE = "/api/v1/namespaces/hami-system"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubeApi]:
    """A control plane with a pod of the node-agents on node `n1`."""
    with control_plane(tmp_path, assets=find_assets(Path(FOLDER))) as plane:
        async with open_kube_api(plane.kubeconfig) as opened:
            await opened.create("/api/v1/namespaces", {"metadata": {"name": "hami-system"}})
            await opened.create(
                f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "hami-node-agent"}}
            )
            pod = {
                "metadata": {"name": "agent"},
                "spec": {
                    "nodeName": "n1",
                    "serviceAccountName": "hami-node-agent",
                    "containers": [{"name": "agent", "image": "none"}],
                },
            }
            await opened.create(f"{NAMESPACE}/pods", pod)
            yield opened


async def token(api: KubeApi, *, audience: str, bound: bool = True) -> str:
    """Request a token as the kubelet does for a projected volume."""
    spec: dict[str, object] = {"audiences": [audience], "expirationSeconds": 3600}
    if bound:
        pod = await api.get(f"{NAMESPACE}/pods/agent")
        uid = pod["metadata"]["uid"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": uid}
    made = await api.create(
        f"{NAMESPACE}/serviceaccounts/hami-node-agent/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
    )
    return str(made["status"]["token"])


async def test_a_pods_token_names_its_node_and_another_audiences_names_nothing(
    api: KubeApi,
) -> None:
    reviews = KubernetesTokenReviews(api, audience="hami-nats")
    account = "system:serviceaccount:hami-system:hami-node-agent"

    good = await reviews.review(await token(api, audience="hami-nats"))
    unbound = await reviews.review(await token(api, audience="hami-nats", bound=False))

    assert good == Bearer(username=account, node="n1")
    assert unbound == Bearer(username=account, node=None)
    for bad in (await token(api, audience="vault"), "forged"):
        with pytest.raises(InvalidRequest, match="the token is invalid"):
            await reviews.review(bad)
