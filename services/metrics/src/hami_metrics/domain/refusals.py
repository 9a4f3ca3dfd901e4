"""A refusal at admission as it is kept: bounded, because who is refused chooses its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hamicommon.clipping import clip
from hamicommon.events import AdmissionRefused

MAX_GROUPS = 16
MAX_GROUP_LENGTH = 128
MAX_MESSAGE_LENGTH = 512
"""Characters. An identity provider may put a user into hundreds of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRefusal:
    """One pod that admission refused."""

    review_uid: str
    """Unique; by it a refusal that is delivered again is known."""
    at: datetime
    username: str
    groups: Sequence[str]
    namespace: str
    pod_name: str
    """Or what it would have started with, and a star."""
    owner_kind: str
    """Kind of the pod's controller; empty: it has none, or the webhook is an older one."""
    owner_name: str
    service_account: str
    operation: str
    """`CREATE`, or `UPDATE` with the subresource."""
    reason: str
    message: str


def refusal_of(event: AdmissionRefused) -> AdmissionRefusal:
    """The event, clipped."""
    return AdmissionRefusal(
        review_uid=event.review_uid,
        at=event.at,
        username=clip(event.user),
        groups=tuple(clip(group, MAX_GROUP_LENGTH) for group in event.groups[:MAX_GROUPS]),
        namespace=clip(event.namespace),
        pod_name=clip(event.pod_name),
        owner_kind=clip(event.owner_kind),
        owner_name=clip(event.owner_name),
        service_account=clip(event.service_account),
        operation=clip(f"{event.operation} {event.subresource}".strip()),
        reason=clip(event.reason),
        message=clip(event.said, MAX_MESSAGE_LENGTH),  # codespell:ignore said
    )
