"""The part of claims (DRA): the work of played nodes for them, and their templates.

Each pod names a ResourceClaimTemplate, so kube-controller-manager is real, too. A node's kubelet
and agent read claim and pod as often as the real ones, and the agent requests the grant before the
pod runs. ResourceSlices show the capacity that was free when a round began.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.errors
from hami_node_agent.dra.slices import offered_devices, slice_name, wanted_slice
from hami_node_agent.grants.feed import node_grant
from hamicommon.bus.inventories import card_of
from hamicommon.bus.permissions import asker_inboxes
from hamicommon.dra.claims import claim_names, claim_path
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import NotFound, Unavailable
from hamicommon.events import ClaimsReply, ClaimsRequest, claims_subject
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json
from hamilocal.supervisor.ports import free_port
from nats.aio.client import Client

from bench.pods.played import WRITERS, PlayedNodes
from bench.servers import process
from tests.control_plane import ControlPlane

RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
TEMPLATE = "a-slice"
ASK_S = 15.0
"""Timeout of a node's agent for its grant."""
LOOK_S = 0.2


class ClaimNodes(PlayedNodes):
    """Played nodes whose cards are DRA devices, too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.agents = Client()
        """Connection of the nodes' agents, each with its own inbox."""
        self._slices: dict[str, Json] = {}
        self.refused: dict[str, str] = {}
        """By uid: why the ledger refused a pod's allocation; it is requested again."""

    async def register(self) -> None:
        """Register Node objects, cards and ResourceSlices."""
        await super().register()
        await self.publish()

    async def publish(self) -> None:
        """Publish the ResourceSlices, less what pods with limits hold now."""
        gate = asyncio.Semaphore(WRITERS)

        async def one(name: str) -> None:
            async with gate:
                await self._publish_slice(name)

        await asyncio.gather(*map(one, self._names))

    async def _publish_slice(self, node: str) -> None:
        grants = [node_grant(grant) for grant in self._grants.values() if grant.node == node]
        devices = offered_devices(map(card_of, self._devices[node]), grants)
        owner = await self._api.get(f"/api/v1/nodes/{node}")
        body = wanted_slice(node, owner["metadata"]["uid"], devices, self._slices.get(node))
        if body is None:
            return
        if node in self._slices:
            path = f"{SLICES}/{slice_name(node)}"
            self._slices[node] = await self._api.replace(path, body)
        else:
            self._slices[node] = await self._api.create(SLICES, body)

    async def _carry_out(self, item: Json) -> None:
        spec = item.get("spec") or {}
        if spec.get("resourceClaims") and not item["metadata"].get("deletionTimestamp"):
            await self._prepare(item)
        await super()._carry_out(item)

    async def _prepare(self, pod: Json) -> None:
        """Raises: NotFound, Unavailable."""
        metadata = pod["metadata"]
        for name in claim_names(pod).values():
            # Once the kubelet, once the agent for the call, once more for the pod that it is of.
            for _ in range(3):
                await self._api.get(claim_path(metadata["namespace"], name))
        await self._api.get(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}")
        if metadata["uid"] in self._grants:
            return
        node = pod["spec"]["nodeName"]
        asked = ClaimsRequest(
            node=node,
            pod_uid=metadata["uid"],
            namespace=metadata["namespace"],
            pod_name=metadata["name"],
        )
        reply = ClaimsReply.model_validate_json(await self._ask(node, asked))
        if reply.grant is None:
            self.refused[metadata["uid"]] = reply.refused
            raise Unavailable(f"{metadata['name']} was refused: {reply.refused}")
        self.refused.pop(metadata["uid"], None)
        self._grants[metadata["uid"]] = reply.grant

    async def _ask(self, node: str, request: ClaimsRequest) -> bytes:
        inbox = f"{asker_inboxes(claims_subject(node))}{uuid.uuid4().hex}"
        subscription = await self.agents.subscribe(inbox, max_msgs=1)
        body = request.model_dump_json().encode()
        await self.agents.publish(claims_subject(node), body, reply=inbox)
        try:
            return (await subscription.next_msg(timeout=ASK_S)).data
        except nats.errors.TimeoutError as exc:
            raise Unavailable(f"{claims_subject(node)} was not answered") from exc


async def set_up(api: KubeApi) -> None:
    """The DeviceClass, and the template that all pods name."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    body = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
    await api.create(f"{RESOURCES}/deviceclasses", body)
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": DRIVER,
            "capacity": {"requests": {"memory": "2048Mi", "cores": "2"}},
        },
    }
    await api.create(
        f"{RESOURCES}/namespaces/default/resourceclaimtemplates",
        {
            "metadata": {"name": TEMPLATE},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    )


def with_claim(pod: dict[str, Any], *, limits: dict[str, str]) -> None:
    """Make the pod's container use its own claim, beside these limits."""
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": TEMPLATE}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}], "limits": limits}


async def until_made(api: KubeApi, prefix: str) -> None:
    """Wait until every pod with that prefix of its name has its claim."""
    while True:
        pods = await api.get("/api/v1/namespaces/default/pods")
        found = [p for p in pods["items"] if p["metadata"]["name"].startswith(prefix)]
        try:
            for pod in found:
                claim_names(pod)
            return
        except NotFound:
            await asyncio.sleep(LOOK_S)


@contextmanager
def controllers(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """kube-controller-manager's part of claims runs inside the block.

    Raises: SystemExit when there is none beside the API server's program.
    """
    binary = plane.assets.folder / "kube-controller-manager"
    if not binary.exists():
        raise SystemExit(f"{plane.assets.folder} (KUBEBUILDER_ASSETS) holds no {binary.name}")
    argv = [
        str(binary),
        f"--kubeconfig={plane.kubeconfig}",
        "--controllers=resourceclaim-controller",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        f"--secure-port={free_port()}",
        f"--cert-dir={folder}",
    ]
    with process(argv, {}, folder / "kube-controller-manager.log"):
        yield
