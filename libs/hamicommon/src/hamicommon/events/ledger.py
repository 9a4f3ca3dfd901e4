"""Facts of the ledger and of admission, for views, quotas and the events of pods."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from hamicommon.events.payload import Amount, Count, NodeField, Payload


class DeviceCounters(BaseModel):
    """Absolute counters of one card after a change; a view applies only a higher version."""

    model_config = ConfigDict(frozen=True)

    node: str
    uuid: str
    used_slots: Amount
    used_memory_mib: Amount
    used_core_percent: Amount
    device_version: Count
    holdings: tuple[dict[str, Any], ...] = ()
    """See domain.devices.DeviceUsage; left out where there are none."""


class QuotaNumbers(BaseModel):
    """One resource with a limit; MiB of memory, or cores."""

    model_config = ConfigDict(frozen=True)

    resource: str
    limit: int
    used: int


class NamespaceNumbers(Payload):
    """Counts of the ledger on a namespace's quotas; without items it has none (any more)."""

    namespace: str
    taken_at: AwareDatetime
    quotas: tuple[QuotaNumbers, ...]


class ClusterNumbers(Payload):
    """Counts of the ledger on the cluster; also the sign that the numbers above are current."""

    taken_at: AwareDatetime
    agent_nodes: int
    """Nodes whose cards an agent of ours reported: so many inventories there should be."""
    foreign_vendors: tuple[str, ...]
    """Vendors that have cards on other nodes, of which the inventory stream knows nothing."""
    gone_nodes: tuple[NodeField, ...] = ()
    """Nodes with an agent that were deleted while the inventory stream may still have them."""


class AdmissionRefused(Payload):
    """Admission refused a pod: there is no object that an event could belong to.

    What follows `at` was added later: an older webhook leaves it empty. Texts that users chose are
    clipped (`hamicommon.clipping`), and so is the number of groups.
    """

    review_uid: str
    namespace: str
    pod_name: str
    """Or what it would start with, and a star."""
    user: str
    reason: str
    """A short code, see `hamicommon.admission.verdicts.Reason`."""
    said: str  # codespell:ignore said
    """The message that the user got, 1024 characters at most."""
    at: AwareDatetime
    code: int = 0
    """HTTP status of the answer: 400, 403, 422, or 500 for a failure of our own."""
    operation: str = "CREATE"
    """UPDATE for an ephemeral container that is added to a pod."""
    subresource: str = ""
    """`ephemeralcontainers`, or none."""
    groups: tuple[str, ...] = ()
    """Groups of the user, as the API server authenticated them."""
    service_account: str = ""
    """Service account of the pod."""
    generate_name: str = ""
    owner_kind: str = ""
    """Kind of the controller that creates the pod (`ReplicaSet`); empty: it has none."""
    owner_name: str = ""


class AllocationEvent(Payload):
    """A state change of an allocation other than to `binding`; the verb is the new state."""

    event_id: int
    allocation_id: str
    pod_uid: str
    namespace: str
    pod_name: str
    node: str
    state: str
    sequence: Count
    """Gap-free per pod in the ledger; the numbers of steps to `binding` are not announced."""
    reason: str = ""
    at: AwareDatetime
    counters: tuple[DeviceCounters, ...] = ()


class DeviceHealthEvent(Payload):
    """A card became healthy or unhealthy."""

    event_id: int
    node: str
    uuid: str
    healthy: bool
    reason: str
    at: AwareDatetime
