"""Streams, subjects and versioned payloads of all messages on the bus.

Facts are named in the past tense and delivered at least once, so every consumer is idempotent by
the id in the payload. A payload of an unknown `version` is dead-lettered, never interpreted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hamicommon.grants.grant import Grant

NodeField = Annotated[
    str, Field(max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
]
"""Name of a Kubernetes node; different names give different tokens of a subject."""


MAX_COUNT = 2**53 - 1
"""Maximum of a counter; the ledger's columns have the same."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MAX_AMOUNT = 2**31 - 1
"""Maximum of an amount: HAMi's annotations and the ledger's columns have 32 bits."""
Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown fields are ignored so that readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1


class NodePayload(Payload):
    """Base of payloads that a node sends, or answers, on its own subject.

    Only `bus.reader.read_of_node` decodes one: it compares `node` with the subject, which the bus
    server guards.
    """

    node: NodeField

    @staticmethod
    def subject_of(node: str) -> str:
        """Return the node's subject for this payload."""
        raise NotImplementedError


INVENTORY_STREAM = "HAMI_INVENTORY"
GRANTS_STREAM = "HAMI_GRANTS"
REPORTS_STREAM = "HAMI_REPORTS"
USAGE_STREAM = "HAMI_USAGE"
LIMITS_STREAM = "HAMI_LIMITS"
EVENTS_STREAM = "HAMI_EVENTS"
LEDGER_STREAM = "HAMI_LEDGER"
LEDGER_CLUSTER_SUBJECT = "hami.ledger.v1.cluster"
"""Subject of the ledger's facts about the whole cluster."""
ADMISSION_REFUSED_SUBJECT = "hami.events.v1.admission.refused"
"""Subject of refusals by the webhook."""


def token_of(node: str) -> str:
    """Return a node's name as a token of a subject: dots, which would part tokens, become `_`."""
    return node.replace(".", "_")


def inventory_subject(node: str) -> str:
    """Return the subject of a node's inventory (the stream keeps the newest message)."""
    return f"hami.inventory.v1.{token_of(node)}"


def grants_subject(node: str) -> str:
    """Return the subject of a node's grants, announced before the pod is bound."""
    return f"hami.grants.v1.{token_of(node)}"


def snapshot_subject(node: str) -> str:
    """Return the subject on which agents request all live grants of a node (no stream)."""
    return f"hami.grants.snapshot.{token_of(node)}"


def readiness_subject(node: str) -> str:
    """Return the subject on which an agent is asked whether it can take a pod (no stream)."""
    return f"hami.agents.readiness.{token_of(node)}"


def holdings_subject(node: str) -> str:
    """Return the subject on which an agent is asked who holds its node's devices (no stream)."""
    return f"hami.agents.holdings.{token_of(node)}"


def claims_subject(node: str) -> str:
    """Return the subject on which agents request the grant for a pod's ResourceClaims."""
    return f"hami.grants.claims.{token_of(node)}"


def reports_subject(node: str) -> str:
    """Return the subject of a node's reports on its grants."""
    return f"hami.reports.v1.{token_of(node)}"


def limits_subject(node: str) -> str:
    """Return the subject of a node's findings about exceeded limits."""
    return f"hami.limits.v1.{token_of(node)}"


def usage_subject(node: str) -> str:
    """Return the subject of a node's usage samples."""
    return f"hami.usage.v1.{token_of(node)}"


def ledger_quota_subject(namespace: str) -> str:
    """Return the subject of a namespace's quotas with the ledger's counts on them."""
    return f"hami.ledger.v1.quota.{namespace}"


def event_subject(entity: str, verb: str) -> str:
    """Return the subject of events of the ledger, such as `hami.events.v1.allocation.released`."""
    return f"hami.events.v1.{entity}.{verb}"


MAX_CARDS = 1024
"""Maximum number of cards of one node."""
HEARTBEAT_S = 10.0
"""Maximum time between two inventories of an agent."""


PairScore = Annotated[int, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]


class MigProfileItem(BaseModel):
    """One MIG profile of a card; see `domain.devices.MigProfile`."""

    name: str
    memory_mib: Amount
    core_percent: Amount
    slice_count: Amount
    placements: tuple[tuple[Amount, Amount], ...] = ()


class InventoryDevice(BaseModel):
    """One card in an inventory; units as in domain.devices.GpuDevice."""

    uuid: str = Field(min_length=1, max_length=256)
    index: Amount
    vendor: str = Field(min_length=1)
    type: str
    slots: Amount
    memory_mib: Amount
    core_percent: Amount
    numa: int = Field(default=0, ge=-1, le=MAX_AMOUNT)
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfileItem, ...] = ()
    info: dict[str, Any] = Field(default_factory=dict)


class Inventory(NodePayload):
    """All cards of a node; sent on change and as heartbeat."""

    subject_of = staticmethod(inventory_subject)

    agent_id: str
    """Id of the agent's process; a new one after each start."""
    sequence: Count
    """Number that grows while `agent_id` stays the same; a lower one is stale."""
    observed_at: AwareDatetime
    """Time by the node's own clock: shows its skew, but gives no order."""
    devices: tuple[InventoryDevice, ...]
    pair_scores: dict[str, dict[str, PairScore]] = Field(default_factory=dict)
    malformed: tuple[str, ...] = Field(default=(), exclude=True)
    """Faults of cards that could not be read; the readable ones are in `devices`."""

    @model_validator(mode="wrap")
    @classmethod
    def _leave_out_malformed_cards(
        cls, data: Any, handler: ModelWrapValidatorHandler[Inventory]
    ) -> Inventory:
        """Leave out cards that can't be read, and keep the others."""
        try:
            return handler(data)
        except ValidationError as exc:
            wrong = {at[1]: error["msg"] for error in exc.errors() if _is_card(at := error["loc"])}
            if len(wrong) == 0 or any(not _is_card(error["loc"]) for error in exc.errors()):
                raise
            kept = [card for i, card in enumerate(data["devices"]) if i not in wrong]
            problems = tuple(f"card {i} of the report: {msg}" for i, msg in sorted(wrong.items()))
            return handler({**data, "devices": kept, "malformed": problems})


def _is_card(location: tuple[int | str, ...]) -> bool:
    return len(location) > 2 and location[0] == "devices" and isinstance(location[1], int)


class GrantAnnounced(Payload):
    """Grant of a pod that is about to be bound to this node."""

    kind: Literal["granted"] = "granted"
    grant: Grant


class GrantWithdrawn(Payload):
    """Notice that a grant is no longer valid (bind failed, or the pod is gone)."""

    kind: Literal["withdrawn"] = "withdrawn"
    allocation_id: str
    pod_uid: str
    node: str
    token: Count
    reason: str


GrantMessage = Annotated[GrantAnnounced | GrantWithdrawn, Field(discriminator="kind")]
GRANT_MESSAGE: TypeAdapter[GrantAnnounced | GrantWithdrawn] = TypeAdapter(GrantMessage)


class GrantSnapshotRequest(NodePayload):
    """Request of an agent for its node's live grants (binding, bound, allocated, releasing)."""

    subject_of = staticmethod(snapshot_subject)


class GrantState(BaseModel):
    """Grant with its state in the ledger."""

    model_config = ConfigDict(frozen=True)

    grant: Grant
    state: str


class GrantSnapshot(Payload):
    """All live grants of a node; `complete` is False if the ledger could not be read."""

    node: str
    complete: bool
    taken_at: AwareDatetime
    grants: tuple[GrantState, ...] = ()


class ReadinessRequest(Payload):
    """Question to an agent before a pod is bound to its node: can it take the pod?"""

    node: str
    grant: Grant | None = None
    """Grant of the pod, which the agent keeps if it can take the pod."""


class Readiness(NodePayload):
    """Answer of the agent; `reason` is one sentence why it can't."""

    subject_of = staticmethod(readiness_subject)

    ready: bool
    reason: str = ""
    taken: bool = False
    """Whether the agent keeps the grant of the question; older agents read it from the bus."""
    late: bool = False
    """Whether the node binds late, so that several pods may be between bind and Allocate."""


class HoldingsRequest(Payload):
    """Question to an agent: what do the kubelet's checkpoint and PodResources of the node hold?"""

    node: str


class HeldContainer(BaseModel):
    """A container that holds device ids, as its node reports it and no user can write it."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str
    namespace: str = ""
    pod_name: str = ""
    """Name of the pod; empty for one that is deleted but still in the checkpoint."""
    container: str
    device_ids: tuple[str, ...]
    cards_of_ids: tuple[str, ...]
    """Cards to which the kubelet assigns the ids; HAMi's plugin may have given others."""
    ended: bool = False
    """Whether the pod has ended and no longer holds the ids."""
    ours: bool = False
    """Whether our agent answered Allocate."""
    visible: tuple[str, ...] | None = None
    """Uuids of cards in the device plugin's answer; None: only PodResources was readable."""
    memory_mib: tuple[int, ...] = ()
    """Memory limit in the answer for each visible card; empty: HAMi did not write the answer."""
    core_percent: int | None = None
    """Core limit in the answer, for all visible cards."""


class NodeHoldings(NodePayload):
    """Containers that hold devices on a node."""

    subject_of = staticmethod(holdings_subject)

    read_at: AwareDatetime
    containers: tuple[HeldContainer, ...] = ()
    problems: tuple[str, ...] = ()
    """Sources (checkpoint, PodResources) that could not be read, one sentence each.

    The containers come from the other source.
    """
    readable: bool = True
    """Whether a source could be read; if not, it is unknown who holds devices."""


class ClaimsRequest(NodePayload):
    """Request of an agent for a grant, to prepare a pod's ResourceClaims on its node.

    The scheduler reads the amounts from the claims themselves.
    """

    subject_of = staticmethod(claims_subject)

    pod_uid: str
    namespace: str
    pod_name: str


class ClaimsReply(Payload):
    """Answer to the request: the grant, or one sentence why there is none."""

    node: str
    grant: Grant | None = None
    refused: str = ""


class ReportBase(NodePayload):
    """Base of a node's reports about one allocation."""

    subject_of = staticmethod(reports_subject)

    report_id: str
    """Unique id, by which repeated reports are dropped."""
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
    """Index among the container's cards, in the order of the grant."""
    uuid: str
    """Uuid of the card."""
    mig_uuid: str
    gpu_instance_id: int
    compute_instance_id: int


class Allocated(ReportBase):
    """Report that the kubelet has the answer of Allocate for every container of the pod."""

    kind: Literal["allocated"] = "allocated"
    instances: tuple[MadeInstance, ...] = Field(default=(), max_length=1024)
    """MIG instances of the pod's slices on cards in MIG mode; reported again when they change."""


class AllocateFailed(ReportBase):
    """Report that Allocate or PreStartContainer was refused."""

    kind: Literal["failed"] = "failed"
    reason: str


class StartRefused(ReportBase):
    """Report that a container got the Allocate answer of another one, so that its pod must end.

    `allocation_id` is the pod's own grant; empty for a pod that bypassed the scheduler.
    """

    kind: Literal["start-refused"] = "start-refused"
    namespace: str
    pod_name: str
    container: str
    reason: str


class PodGone(ReportBase):
    """Report that the agent no longer sees a container of the pod."""

    kind: Literal["gone"] = "gone"


class PodStays(ReportBase):
    """Report that processes still run of a pod whose object is gone and whose grant has ended."""

    kind: Literal["stays"] = "stays"


AnyReport = Allocated | AllocateFailed | StartRefused | PodGone | PodStays
REPORT: TypeAdapter[AnyReport] = TypeAdapter(Annotated[AnyReport, Field(discriminator="kind")])


LIMITS_HEARTBEAT_S = 60.0
"""Interval at which a node reports its check of limits, even without findings."""
LIMITS_BUSY_S = 10.0
"""Interval while a container exceeds its grant."""
MAX_FINDINGS = 512
"""Maximum number of findings in a message; the worst come first."""


class LimitFinding(BaseModel):
    """Violation of limits by one container on one card."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str = Field(min_length=1, max_length=64)
    namespace: str = Field(default="", max_length=63)
    pod: str = Field(default="", max_length=253)
    """Name of the pod; empty, like the namespace, if the node does not know it."""
    container: str = Field(default="", max_length=63)
    """Name of the container; empty if the node does not know which one of the pod's it is."""
    uuid: str = Field(min_length=1, max_length=128)
    """Uuid of the card."""
    state: Literal["exceeded", "bypassed", "unknown"]
    since: AwareDatetime
    """Time of the first check with this finding."""
    held_mib: Amount | None = None
    """Memory held at the last check, as the driver reports it; None: the driver does not know."""
    peak_mib: Amount = 0
    granted_mib: Amount = 0
    violating: bool = False
    """Whether the last check found it; false: it found none, but not for long enough yet."""
    reason: str = Field(default="", max_length=512)


class LimitCheck(NodePayload):
    """All findings of one node at one moment, so that the newest message replaces all earlier ones.

    They are kept for a day, so that no period is lost while no consumer reads.
    """

    subject_of = staticmethod(limits_subject)

    agent_id: str
    sequence: Count
    """Number that grows while `agent_id` stays the same."""
    checked_at: AwareDatetime
    containers: Amount = 0
    """Number of containers with a grant that were checked."""
    settled: bool = True
    """Whether findings are complete; false shortly after the agent's start."""
    findings: tuple[LimitFinding, ...] = Field(default=(), max_length=MAX_FINDINGS)


USAGE_HEARTBEAT_S = 60
"""Interval at which an agent reports all samples, also unchanged ones."""
USAGE_MAX_ROUNDS = 60
"""Number of rounds after which it does so too, to bound what a report makes readers store."""
USAGE_MAX_ROWS = 100_000
"""Maximum number of samples of one report, in all of its rounds.

No report of distinct slices that fits into a message of the bus (1 MiB) has more.
"""
MAX_SAMPLES = 4096
"""Maximum number of containers in one round."""

Name = Annotated[str, Field(max_length=253)]
Bytes = Annotated[int, Field(ge=0, le=2**44)]
"""Memory of one card in bytes, at most 16 TiB: a hundred times today's largest card."""
Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
"""Percent of one card; a container's share, measured at a moment, may be above 100."""
Figure = Annotated[float, Field(ge=-1000, le=100_000, allow_inf_nan=False)]
"""Degrees or watts."""


class DeviceSample(BaseModel):
    """Sample of one card at one moment; None is unknown, never 0."""

    model_config = ConfigDict(frozen=True)

    uuid: Name
    index: Amount
    type: Name
    memory_used_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    gpu_percent: Percent | None = None
    memory_controller_percent: Percent | None = None
    temperature_celsius: Figure | None = None
    power_watts: Figure | None = None

    @model_validator(mode="after")
    def _check_memory(self) -> DeviceSample:
        used, total = self.memory_used_bytes, self.memory_total_bytes
        if used is not None and total is not None and used > total:
            raise ValueError(f"card {self.uuid} uses {used} of its {total} bytes of memory")
        return self


class ContainerSample(BaseModel):
    """Sample of one container's slice of one card, from the library's shared file."""

    model_config = ConfigDict(frozen=True)

    pod_uid: Name = Field(min_length=1)
    namespace: Name
    pod: Name
    container: Name
    vdevice_index: Amount
    uuid: Name
    memory_used_bytes: Bytes | None = None
    memory_limit_bytes: Bytes | None = None
    """Memory limit; None: unknown, 0: no limit."""
    context_bytes: Bytes | None = None
    module_bytes: Bytes | None = None
    buffer_bytes: Bytes | None = None
    core_percent: Percent | None = None
    core_limit_percent: Amount | None = None
    """Core limit in percent; None: unknown, 0: no limit."""
    processes: Amount = 0
    """Number of living processes that use the card through the library."""
    last_kernel_at: datetime | None = None


class Unchanged(BaseModel):
    """Samples that stayed the same for some rounds and have changed since."""

    model_config = ConfigDict(frozen=True)

    rounds: PositiveInt
    """Number of rounds, counted from the end of the report's `earlier_rounds`."""
    devices: tuple[DeviceSample, ...] = Field(default=(), max_length=MAX_CARDS)
    containers: tuple[ContainerSample, ...] = Field(default=(), max_length=MAX_SAMPLES)


class Usage(NodePayload):
    """Changes in one node's use of its cards since its last report.

    Together the reports hold everything that the agent saw in each round.
    """

    subject_of = staticmethod(usage_subject)

    agent_id: Name
    sequence: Count
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...] = Field(max_length=MAX_CARDS)
    """Cards that are new or changed at `sampled_at`; in the first report of a heartbeat all."""
    containers: tuple[ContainerSample, ...] = Field(max_length=MAX_SAMPLES)
    """Containers that are new or changed, like `devices`."""
    unchanged: tuple[Unchanged, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """Samples that stopped being equal with this report; those that still are come later."""
    earlier_rounds: tuple[AwareDatetime, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """Times of the rounds that `unchanged` is about, ascending."""

    @property
    def rows(self) -> int:
        """Return the number of samples that a reader stores for this report."""
        rows = len(self.devices) + len(self.containers)
        for past in self.unchanged:
            rounds = min(past.rounds, len(self.earlier_rounds))
            rows += rounds * (len(past.devices) + len(past.containers))
        return rows

    @model_validator(mode="after")
    def _check_rows(self) -> Usage:
        if self.rows > USAGE_MAX_ROWS:
            raise ValueError(
                f"it has {self.rows} samples with all of its rounds; at most {USAGE_MAX_ROWS} are "
                "read"
            )
        return self


class DeviceCounters(BaseModel):
    """Counters of one card after a change; readers ignore a version that is not higher."""

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
    """Use and limit of one resource in MiB or percent of cores."""

    model_config = ConfigDict(frozen=True)

    resource: str
    limit: int
    used: int


class NamespaceNumbers(Payload):
    """Quotas of a namespace with the ledger's counts; without items it has none."""

    namespace: str
    taken_at: AwareDatetime
    quotas: tuple[QuotaNumbers, ...]


class ClusterNumbers(Payload):
    """Ledger's counts of the whole cluster; as a heartbeat it shows that others are current."""

    taken_at: AwareDatetime
    agent_nodes: int
    """Number of nodes whose cards our agents reported, and so of inventories to expect."""
    foreign_vendors: tuple[str, ...]
    """Vendors with cards on other nodes, which are in no inventory."""
    gone_nodes: tuple[NodeField, ...] = ()
    """Deleted nodes with an agent whose inventories the stream may still have."""


class AdmissionRefused(Payload):
    """Refusal of a pod by admission; there is no object to which an event could belong.

    What follows `at` was added later: an older webhook leaves it empty. Texts that users chose are
    clipped (`hamicommon.clipping`), and so is the number of groups.
    """

    review_uid: str
    namespace: str
    pod_name: str
    """Name of the pod, or the beginning of a generated name and a star."""
    user: str
    reason: str
    """Code of the reason, see `hamicommon.admission.verdicts.Reason`."""
    said: str  # codespell:ignore said
    """Message that the user got, at most 1024 characters."""
    at: AwareDatetime
    code: int = 0
    """HTTP status of the answer: 400, 403, 422, or 500 for a failure of our own."""
    operation: str = "CREATE"
    """Operation of the request: UPDATE if an ephemeral container is added to a pod."""
    subresource: str = ""
    """Subresource of the request: `ephemeralcontainers`, or empty."""
    groups: tuple[str, ...] = ()
    """Groups of the user, as the API server authenticated them."""
    service_account: str = ""
    """Service account of the pod."""
    generate_name: str = ""
    owner_kind: str = ""
    """Kind of the controller that creates the pod (`ReplicaSet`); empty: none."""
    owner_name: str = ""


class AllocationEvent(Payload):
    """A change of an allocation's state, except to `binding`; its subject ends in the state."""

    event_id: int
    allocation_id: str
    pod_uid: str
    namespace: str
    pod_name: str
    node: str
    state: str
    sequence: Count
    """Number of the change, gap-free per pod; steps to `binding` are not announced."""
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
