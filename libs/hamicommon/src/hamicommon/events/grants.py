"""Grants of a node as the scheduler publishes them, and the snapshot of all of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from hamicommon.events.payload import Count, NodePayload, Payload
from hamicommon.events.subjects import snapshot_subject
from hamicommon.grants.grant import Grant


class GrantAnnounced(Payload):
    """A pod is about to be bound to this node with these slices."""

    kind: Literal["granted"] = "granted"
    grant: Grant


class GrantWithdrawn(Payload):
    """The grant is no longer valid (bind failed, pod gone)."""

    kind: Literal["withdrawn"] = "withdrawn"
    allocation_id: str
    pod_uid: str
    node: str
    token: Count
    reason: str


GrantMessage = Annotated[GrantAnnounced | GrantWithdrawn, Field(discriminator="kind")]
GRANT_MESSAGE: TypeAdapter[GrantAnnounced | GrantWithdrawn] = TypeAdapter(GrantMessage)


class GrantSnapshotRequest(NodePayload):
    """An agent asks for the live grants (binding, bound, allocated, releasing) of its node."""

    subject_of = staticmethod(snapshot_subject)


class GrantState(BaseModel):
    """A grant with its state in the ledger."""

    model_config = ConfigDict(frozen=True)

    grant: Grant
    state: str


class GrantSnapshot(Payload):
    """The answer; `complete` is False when the ledger could not be read."""

    node: str
    complete: bool
    taken_at: AwareDatetime
    grants: tuple[GrantState, ...] = ()
