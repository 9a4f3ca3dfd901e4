"""Reports of an agent on allocations of its node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from hamicommon.events.payload import Count, NodePayload
from hamicommon.events.subjects import reports_subject


class ReportBase(NodePayload):
    """Report of a node on one allocation."""

    subject_of = staticmethod(reports_subject)

    report_id: str
    """Unique; the deduplication id."""
    allocation_id: str
    pod_uid: str
    token: Count
    at: AwareDatetime
    traceparent: str = ""


class MadeInstance(BaseModel):
    """A MIG instance that a node made for one slice of a grant."""

    model_config = ConfigDict(frozen=True)

    container: str
    device_index: int
    """Among the container's cards, in the order of the grant."""
    uuid: str
    """The card's."""
    mig_uuid: str
    gpu_instance_id: int
    compute_instance_id: int


class Allocated(ReportBase):
    """The kubelet has its answer for every container of the pod."""

    kind: Literal["allocated"] = "allocated"
    instances: tuple[MadeInstance, ...] = Field(default=(), max_length=1024)
    """On cards in MIG mode: one for every slice. Reported again when they change."""


class AllocateFailed(ReportBase):
    """Allocate or PreStartContainer was refused."""

    kind: Literal["failed"] = "failed"
    reason: str


class StartRefused(ReportBase):
    """A container holds the answer that another one was meant to have: its pod is to be ended.

    `allocation_id` is the pod's own grant; empty for a pod that bypassed the scheduler.
    """

    kind: Literal["start-refused"] = "start-refused"
    namespace: str
    pod_name: str
    container: str
    reason: str


class PodGone(ReportBase):
    """The agent no longer sees any container of the pod."""

    kind: Literal["gone"] = "gone"


class PodStays(ReportBase):
    """The pod's object is gone, its grant has ended, and processes of it run on."""

    kind: Literal["stays"] = "stays"


AnyReport = Allocated | AllocateFailed | StartRefused | PodGone | PodStays
REPORT: TypeAdapter[AnyReport] = TypeAdapter(Annotated[AnyReport, Field(discriminator="kind")])
