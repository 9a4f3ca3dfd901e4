"""Grants of what kube-scheduler allocated to a pod's ResourceClaims, when its node prepares them.

In: `hami.grants.claims.<node>`, asked by the node's agent before the pod's sandbox exists, or /bind
of a kube-scheduler that asks us (`claims_at_bind.py`). What is
granted is read from the claims themselves and never from the question. Out: one grant of all of the
pod's claims, if the ledger has room beside the pods of the device plugin (`running_pods.py`): the
API server and kube-scheduler know nothing of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hamicommon import telemetry
from hamicommon.bus.reader import read_of_node
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, Origin
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.dra.claims import (
    ContainerClaims,
    allocated_devices,
    claim_names,
    claimed_slices_of,
    container_claims,
    granted_containers,
    granted_shares,
)
from hamicommon.dra.devices import named_devices
from hamicommon.errors import Conflict, Forbidden, InvalidRequest, NotFound
from hamicommon.events import ClaimsReply, ClaimsRequest
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.types import JsonMapping
from opentelemetry.trace import get_tracer

from hami_scheduler.adoption.running_pods import (
    NodeQuestion,
    RunningPodGrant,
    RunningPods,
    reply_with,
)

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesClaimApi


tracer = get_tracer(__name__)

SUBJECT = "hami.grants.claims.*"
REASON = "granted the devices allocated to its ResourceClaims"
MAX_REASON_LENGTH = 512
"""Characters: some ten slices; the history has all of them (`_evidence`)."""


@dataclass(eq=False)
class ClaimGrants:
    """Responder of `hami.grants.claims.*`."""

    pods: RunningPods
    claims: KubernetesClaimApi
    request_of: Callable[[JsonMapping], PodRequest]

    async def respond(self, subject: str, body: bytes) -> ClaimsReply:
        """The grant, or why there is none. Raises: InvalidRequest, Unavailable."""
        asked = read_of_node(ClaimsRequest, subject, body, "request for a pod's claims")
        question = NodeQuestion(
            node=NodeName(asked.node),
            uid=PodUid(asked.pod_uid),
            namespace=asked.namespace,
            name=asked.pod_name,
        )
        try:
            return reply_with(await self.grant(question))
        except (NotFound, InvalidRequest, Conflict, Forbidden) as exc:
            return ClaimsReply(node=asked.node, refused=str(exc))

    async def grant(self, asked: NodeQuestion) -> Allocation:
        """The pod's live grant, which is entered where there is none.

        A slice that another pod holds by the same claim is not counted again.

        Raises: NotFound, InvalidRequest, Conflict, Forbidden, Unavailable.
        """
        pod = await self.pods.read(asked)
        live = await self.pods.granted(asked)
        if live is not None and live.origin is Origin.CLAIM:
            return live
        request = self.request_of(pod)
        if live is not None or request.wants_devices:
            raise Conflict("the pod requests cards by limits and by claims; use only one of them")
        claimed = await self._claimed(pod, asked)
        admission = annotations_of(pod).get(TRACEPARENT, "")
        with tracer.start_as_current_span("claims", links=telemetry.link_to(admission)) as span:
            span.set_attributes(_attributes(asked))
            cards = await self.pods.cards(asked.node)
            shares = granted_shares(claimed, named_devices(cards))
            found = RunningPodGrant(
                request=request,
                containers=granted_containers(claimed, shares),
                origin=Origin.CLAIM,
                reason=clip(f"{REASON}: {_named(claimed)}", MAX_REASON_LENGTH),
                evidence={"claims": list(_evidence(claimed))},
                claims=claimed_slices_of(claimed, shares),
            )
            return await self.pods.enter(pod, asked, found)

    async def _claimed(self, pod: JsonMapping, asked: NodeQuestion) -> tuple[ContainerClaims, ...]:
        devices = {
            key: allocated_devices(await self.claims.get(asked.namespace, name), asked.uid)
            for key, name in claim_names(pod).items()
        }
        claimed = container_claims(pod, devices)
        if not any(container.devices for container in claimed):
            raise InvalidRequest("none of its containers uses a HAMi card through a claim")
        return claimed


def _attributes(asked: NodeQuestion) -> dict[str, str]:
    """Return the attributes of the span: whose claims, on which node."""
    pod = telemetry.pod_attributes(
        uid=asked.uid, namespace=clip(asked.namespace), name=clip(asked.name)
    )
    return {**pod, "k8s.node.name": asked.node}


def _named(claimed: Iterable[ContainerClaims]) -> str:
    """Which claims, for those who read the reason."""
    devices = {device.key: device for container in claimed for device in container.devices}
    return ", ".join(
        f"{device.claim} {device.claim_uid} request {device.request}"
        + (f" share {device.share_id}" if device.share_id else "")
        for device in devices.values()
    )


def _evidence(claimed: Iterable[ContainerClaims]) -> Iterable[dict[str, Any]]:
    """Describe, for the history, the claims that a grant is based on."""
    for container in claimed:
        for device in container.devices:
            yield {
                "container": container.name,
                "claim": device.claim,
                "claim_uid": device.claim_uid,
                "request": device.request,
                "share_id": device.share_id,
                "device": device.device,
            }
