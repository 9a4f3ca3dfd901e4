"""Everything that travels on the bus: streams, subjects and versioned payloads.

Facts are past tense and delivered at least once, so every consumer is idempotent by the id in the
payload. A payload of an unknown `version` is dead-lettered, never guessed at.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from hamicommon.grants import Grant

INVENTORY_STREAM = "HAMI_INVENTORY"
GRANTS_STREAM = "HAMI_GRANTS"
REPORTS_STREAM = "HAMI_REPORTS"
USAGE_STREAM = "HAMI_USAGE"
EVENTS_STREAM = "HAMI_EVENTS"
LEDGER_STREAM = "HAMI_LEDGER"

HEARTBEAT_S = 10.0
"""An agent repeats its inventory at least this often."""

LEDGER_CLUSTER_SUBJECT = "hami.ledger.v1.cluster"
"""Where the scheduler says what its ledger knows of the cluster as a whole."""
ADMISSION_REFUSED_SUBJECT = "hami.events.v1.admission.refused"
"""Where the webhook says which pods it refused."""


def token_of(node: str) -> str:
    """A node's name as one subject token (dots part tokens; `_` is illegal in node names)."""
    return node.replace(".", "_")


def inventory_subject(node: str) -> str:
    """Where a node's inventory is announced (one message kept per subject)."""
    return f"hami.inventory.v1.{token_of(node)}"


def grants_subject(node: str) -> str:
    """Where a node's grants are announced, before the binding."""
    return f"hami.grants.v1.{token_of(node)}"


def snapshot_subject(node: str) -> str:
    """Where an agent asks for all live grants of its node (request and reply, not a stream)."""
    return f"hami.grants.snapshot.{token_of(node)}"


def readiness_subject(node: str) -> str:
    """Where the scheduler asks an agent whether it can take a pod (request and reply)."""
    return f"hami.agents.readiness.{token_of(node)}"


def holdings_subject(node: str) -> str:
    """Where the scheduler asks an agent who holds devices on its node (request and reply)."""
    return f"hami.agents.holdings.{token_of(node)}"


def unmanaged_subject(node: str) -> str:
    """Where an agent asks for a grant of a pod that came past the scheduler (request and reply)."""
    return f"hami.grants.unmanaged.{token_of(node)}"


def moves_subject(node: str) -> str:
    """Where an agent asks for the cards that the kubelet gave in place of the granted ones (request
    and reply)."""
    return f"hami.grants.moves.{token_of(node)}"


def reports_subject(node: str) -> str:
    """Where a node says what became of its grants."""
    return f"hami.reports.v1.{token_of(node)}"


def usage_subject(node: str) -> str:
    """Where a node's usage samples go."""
    return f"hami.usage.v1.{token_of(node)}"


def ledger_quota_subject(namespace: str) -> str:
    """Where a namespace's quotas are told, with what the ledger counts on them."""
    return f"hami.ledger.v1.quota.{namespace}"


def event_subject(entity: str, verb: str) -> str:
    """Where facts of the ledger go, for example `hami.events.v1.allocation.released`."""
    return f"hami.events.v1.{entity}.{verb}"


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown fields are ignored so that readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1


class MigProfileItem(BaseModel):
    """See domain.devices.MigProfile."""

    name: str
    memory_mib: int
    core_percent: int
    slice_count: int
    placements: tuple[tuple[int, int], ...] = ()


class InventoryDevice(BaseModel):
    """One card in an inventory; units as in domain.devices.GpuDevice."""

    uuid: str
    index: int
    vendor: str
    type: str
    slots: int
    memory_mib: int
    core_percent: int
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfileItem, ...] = ()
    info: dict[str, Any] = Field(default_factory=dict)


class Inventory(Payload):
    """All cards of a node; sent on change and as heartbeat."""

    node: str
    agent_id: str
    """Changes with every start of the agent."""
    sequence: int
    """Grows within one agent_id; a lower one is stale."""
    observed_at: AwareDatetime
    devices: tuple[InventoryDevice, ...]
    pair_scores: dict[str, dict[str, int]] = Field(default_factory=dict)


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
    token: int
    reason: str


GrantMessage = Annotated[GrantAnnounced | GrantWithdrawn, Field(discriminator="kind")]
GRANT_MESSAGE: TypeAdapter[GrantAnnounced | GrantWithdrawn] = TypeAdapter(GrantMessage)


class GrantSnapshotRequest(Payload):
    """An agent asks for the live grants (binding, bound, allocated, releasing) of its node."""

    node: str


class ReadinessRequest(Payload):
    """The scheduler is about to bind a pod to this node."""

    node: str


class Readiness(Payload):
    """An agent's answer; `reason` says in one sentence why not."""

    node: str
    ready: bool
    reason: str = ""
    late: bool = False
    """Containers are told their slices when they start: several pods may be on their way."""


class HoldingsRequest(Payload):
    """The scheduler asks what the kubelet's books of the node say."""

    node: str


class HeldContainer(BaseModel):
    """A container that holds device ids, in the words of its node; no user can write them."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str
    namespace: str = ""
    pod_name: str = ""
    """Empty when the node does not know the pod: the books keep pods that are gone for a while."""
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


class NodeHoldings(Payload):
    """Who holds devices on a node."""

    node: str
    read_at: AwareDatetime
    containers: tuple[HeldContainer, ...] = ()
    problems: tuple[str, ...] = ()
    """Books that could not be read, one sentence each; what is there comes from the others."""
    readable: bool = True
    """False when no book could be read: then it is not known who holds what."""


class TakenContainer(BaseModel):
    """Cards that the kubelet gave to a container."""

    model_config = ConfigDict(frozen=True)

    container: str
    uuids: tuple[str, ...]


class UnmanagedRequest(Payload):
    """A pod came to the node past the scheduler; its node asks for a grant of what it was given."""

    node: str
    pod_uid: str
    namespace: str
    pod_name: str
    containers: tuple[TakenContainer, ...]


class UnmanagedReply(Payload):
    """The grant, or in one sentence why there is none."""

    node: str
    grant: Grant | None = None
    refused: str = ""


class WantedMove(BaseModel):
    """A container holds other cards than granted."""

    model_config = ConfigDict(frozen=True)

    allocation_id: str
    token: int
    container: str
    uuids: tuple[str, ...]
    """The cards that it holds, one for each of its slices in the order of the grant."""


class MoveRequest(Payload):
    """A container may start only where the ledger counts it, so its node asks before it does."""

    node: str
    owner: WantedMove
    """The container that is about to start."""
    partners: tuple[WantedMove, ...] = ()
    """Containers that hold what it was granted, or what those were granted, and have not started:
    they leave the cards that the owner needs."""


class MoveReply(Payload):
    """Empty when the ledger counts the owner where it is; else why it does not, in one sentence."""

    node: str
    refused: str = ""


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


class ReportBase(Payload):
    """What a node says of one allocation."""

    report_id: str
    """Unique; the deduplication id."""
    node: str
    allocation_id: str
    pod_uid: str
    token: int
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
    instances: tuple[MadeInstance, ...] = ()
    """On cards in MIG mode: one for every slice. Said again when they are others."""


class AllocateFailed(ReportBase):
    """Allocate or PreStartContainer was refused."""

    kind: Literal["failed"] = "failed"
    reason: str


class PodGone(ReportBase):
    """The agent no longer sees any container of the pod."""

    kind: Literal["gone"] = "gone"


class PodStays(ReportBase):
    """The pod's object is gone, its grant has ended, and processes of it run on."""

    kind: Literal["stays"] = "stays"


AnyReport = Allocated | AllocateFailed | PodGone | PodStays
REPORT: TypeAdapter[AnyReport] = TypeAdapter(Annotated[AnyReport, Field(discriminator="kind")])


class DeviceSample(BaseModel):
    """One card at one moment; None is unknown, never 0."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    index: int
    type: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    gpu_percent: float | None = None
    memory_controller_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class ContainerSample(BaseModel):
    """One container's slice of one card at one moment, from its shared region."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str
    namespace: str
    pod: str
    container: str
    vdevice_index: int
    uuid: str
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """None: unknown; 0: there is none."""
    context_bytes: int | None = None
    module_bytes: int | None = None
    buffer_bytes: int | None = None
    core_percent: float | None = None
    core_limit_percent: int | None = None
    """None: unknown; 0: there is none."""
    processes: int = 0
    """Living ones that use the card's library."""
    last_kernel_at: datetime | None = None


class Usage(Payload):
    """All samples of one node at one moment."""

    node: str
    agent_id: str
    sequence: int
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...]
    containers: tuple[ContainerSample, ...]


class DeviceCounters(BaseModel):
    """Absolute counters of one card after a change; a view applies only a higher version."""

    model_config = ConfigDict(frozen=True)

    node: str
    uuid: str
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    device_version: int
    holdings: tuple[dict[str, Any], ...] = ()
    """See domain.devices.DeviceUsage; left out where there are none."""


class QuotaNumbers(BaseModel):
    """One resource with a limit; MiB of memory, or cores."""

    model_config = ConfigDict(frozen=True)

    resource: str
    limit: int
    used: int


class NamespaceNumbers(Payload):
    """What the ledger counts on a namespace's quotas; without items it has none (any more)."""

    namespace: str
    taken_at: AwareDatetime
    quotas: tuple[QuotaNumbers, ...]


class ClusterNumbers(Payload):
    """What the ledger knows of the cluster; also the sign that the numbers above are fresh."""

    taken_at: AwareDatetime
    agent_nodes: int
    """Nodes whose cards an agent of ours told: so many inventories there should be."""
    foreign_vendors: tuple[str, ...]
    """Vendors that have cards on other nodes, of which the inventory stream knows nothing."""


class AdmissionRefused(Payload):
    """Admission refused a pod: there is no object that an event could belong to."""

    review_uid: str
    namespace: str
    pod_name: str
    user: str
    reason: str
    """In a word; see `hamicommon.admission.verdicts.Reason`."""
    said: str
    at: AwareDatetime


class AllocationEvent(Payload):
    """A state change of an allocation, from the outbox; the verb is the new state."""

    event_id: int
    allocation_id: str
    pod_uid: str
    namespace: str
    pod_name: str
    node: str
    state: str
    sequence: int
    """Gap-free per pod."""
    reason: str = ""
    at: AwareDatetime
    counters: tuple[DeviceCounters, ...] = ()


class DeviceHealthEvent(Payload):
    """A card became healthy or sick."""

    event_id: int
    node: str
    uuid: str
    healthy: bool
    reason: str
    at: AwareDatetime
