"""Questions with one answer: is the node ready, who holds what, may this container move."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from hamicommon.events.inventory import MAX_CARDS
from hamicommon.events.payload import Count, NodePayload, Payload
from hamicommon.events.subjects import (
    claims_subject,
    holdings_subject,
    moves_subject,
    readiness_subject,
    unmanaged_subject,
)
from hamicommon.grants.grant import Grant

MAX_CONTAINERS = 1024
"""Entries of one question: each is looked up in the ledger."""


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
    alike: bool = False
    """Answers to Allocate depend on the grant alone: pods whose grants differ in nothing but the
    pod may be on their way together."""
    exchanges: bool = False
    """The agent has grants of pods that differ in nothing but the card exchanged where answers went
    to others than meant: such pods may be on their way together, too."""


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
    """Who holds devices on a node."""

    subject_of = staticmethod(holdings_subject)

    read_at: AwareDatetime
    containers: tuple[HeldContainer, ...] = ()
    problems: tuple[str, ...] = ()
    """Sources (checkpoint, PodResources) that could not be read, one sentence each; the containers
    come from the other."""
    readable: bool = True
    """False when neither source could be read: then it is not known who holds what."""


class TakenContainer(BaseModel):
    """Cards that the kubelet gave to a container."""

    model_config = ConfigDict(frozen=True)

    container: str
    uuids: tuple[str, ...] = Field(max_length=MAX_CARDS)


class UnmanagedRequest(NodePayload):
    """A pod came to the node past the scheduler; its node asks for a grant of what it was given."""

    subject_of = staticmethod(unmanaged_subject)

    pod_uid: str
    namespace: str
    pod_name: str
    containers: tuple[TakenContainer, ...] = Field(max_length=MAX_CONTAINERS)


class ClaimsRequest(NodePayload):
    """A pod's ResourceClaims are to be prepared on its node, which asks for a grant of them.

    What they amount to the scheduler reads from the claims themselves.
    """

    subject_of = staticmethod(claims_subject)

    pod_uid: str
    namespace: str
    pod_name: str


class UnmanagedReply(Payload):
    """To both: the grant, or in one sentence why there is none."""

    node: str
    grant: Grant | None = None
    refused: str = ""


class WantedMove(BaseModel):
    """A container holds other cards than granted."""

    model_config = ConfigDict(frozen=True)

    allocation_id: str
    token: Count
    container: str
    uuids: tuple[str, ...] = Field(max_length=MAX_CARDS)
    """The cards that it holds, one for each of its slices in the order of the grant."""


class MoveRequest(NodePayload):
    """A container may start only where the ledger counts it, so its node asks before it does."""

    subject_of = staticmethod(moves_subject)

    owner: WantedMove
    """The container that is about to start."""
    partners: tuple[WantedMove, ...] = Field(default=(), max_length=MAX_CONTAINERS)
    """Containers that hold what it was granted, or what those were granted, and have not started:
    they leave the cards that the owner needs."""
    exchange: WantedMove | None = None
    """A container that has not started either, and was granted the card that the owner holds, in a
    slice of the same size: it takes the card that the owner was granted, and nothing is free in
    between. Tried first."""


class MoveReply(Payload):
    """Empty when the ledger counts the owner where it is; else why it does not, in one sentence."""

    node: str
    refused: str = ""
