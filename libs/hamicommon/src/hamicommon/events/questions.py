"""Questions with one answer: is the node ready, who holds what, what do these claims get."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict

from hamicommon.events.payload import NodePayload, Payload
from hamicommon.events.subjects import claims_subject, holdings_subject, readiness_subject
from hamicommon.grants.grant import Grant


class ReadinessRequest(Payload):
    """The scheduler is about to bind a pod to this node."""

    node: str
    grant: Grant | None = None
    """The pod's, to be kept if the answer is yes."""


class Readiness(NodePayload):
    """An agent's answer; `reason` is one sentence about why not."""

    subject_of = staticmethod(readiness_subject)

    ready: bool
    reason: str = ""
    taken: bool = False
    """The grant of the question is known to the agent; an older agent reads it on the bus."""
    late: bool = False
    """Containers get their slices when they start: several pods may be on their way."""


class HoldingsRequest(Payload):
    """The scheduler asks for the kubelet's checkpoint and PodResources of the node."""

    node: str


class HeldContainer(BaseModel):
    """A container that holds device ids, as its node reports it; no user can write this."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str
    namespace: str = ""
    pod_name: str = ""
    """Empty when the node does not know the pod: the checkpoint keeps deleted pods for a while."""
    container: str
    device_ids: tuple[str, ...]
    cards_of_ids: tuple[str, ...]
    """Cards on which the kubelet counts the ids. HAMi's plugin may have shown it others."""
    ended: bool = False
    """The pod is over, so the ids are held by nobody."""
    ours: bool = False
    """Our agent gave the answer."""
    visible: tuple[str, ...] | None = None
    """Cards that the device plugin's answer shows to the container, by uuid, in its order; None
    when only PodResources could be read, which does not have the answer."""
    memory_mib: tuple[int, ...] = ()
    """The limit that the answer sets for each visible card; empty: it is none of HAMi's."""
    core_percent: int | None = None
    """The limit that it sets for all of them."""


class NodeHoldings(NodePayload):
    """Holders of devices on a node."""

    subject_of = staticmethod(holdings_subject)

    read_at: AwareDatetime
    containers: tuple[HeldContainer, ...] = ()
    problems: tuple[str, ...] = ()
    """Sources (checkpoint, PodResources) that could not be read, one sentence each; the containers
    come from the other."""
    readable: bool = True
    """False when neither source could be read: then it is not known who holds what."""


class ClaimsRequest(NodePayload):
    """A pod's ResourceClaims are to be prepared on its node, which asks for a grant of them.

    What they amount to the scheduler reads from the claims themselves.
    """

    subject_of = staticmethod(claims_subject)

    pod_uid: str
    namespace: str
    pod_name: str


class ClaimsReply(Payload):
    """The grant, or in one sentence why there is none."""

    node: str
    grant: Grant | None = None
    refused: str = ""
