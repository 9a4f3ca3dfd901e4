"""Everything that travels on the bus: streams, subjects and versioned payloads.

Facts are past tense and delivered at least once, so every consumer is idempotent by the id in the
payload. A payload of an unknown `version` is dead-lettered, never guessed at.
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
"""A node's name as Kubernetes has it; no two of them are one token of a subject."""


MAX_COUNT = 2**53 - 1
"""The limit of a number that only grows; the ledger's columns have the same."""
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
MAX_AMOUNT = 2**31 - 1
"""HAMi's annotations and the ledger's columns hold 32 bits."""
Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT)]


class Payload(BaseModel):
    """Base of all payloads: frozen, and unknown fields are ignored so that readers may be older."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1


class NodePayload(Payload):
    """Base of what a node sends, or answers, on a subject of its own.

    Only `bus.reader.read_of_node` decodes one: it compares `node` with the subject, which the bus
    server guards.
    """

    node: NodeField

    @staticmethod
    def subject_of(node: str) -> str:
        """The node's subject for this payload."""
        raise NotImplementedError


INVENTORY_STREAM = "HAMI_INVENTORY"
GRANTS_STREAM = "HAMI_GRANTS"
REPORTS_STREAM = "HAMI_REPORTS"
USAGE_STREAM = "HAMI_USAGE"
LIMITS_STREAM = "HAMI_LIMITS"
EVENTS_STREAM = "HAMI_EVENTS"
LEDGER_STREAM = "HAMI_LEDGER"
LEDGER_CLUSTER_SUBJECT = "hami.ledger.v1.cluster"
"""Subject of what the ledger knows of the cluster as a whole."""
ADMISSION_REFUSED_SUBJECT = "hami.events.v1.admission.refused"
"""Subject of the pods that the webhook refused."""


def token_of(node: str) -> str:
    """A node's name as one subject token (dots part tokens; `_` is illegal in node names)."""
    return node.replace(".", "_")


def inventory_subject(node: str) -> str:
    """Return the subject of a node's inventory (one message kept per subject)."""
    return f"hami.inventory.v1.{token_of(node)}"


def grants_subject(node: str) -> str:
    """Return the subject of a node's grants, announced before the binding."""
    return f"hami.grants.v1.{token_of(node)}"


def snapshot_subject(node: str) -> str:
    """Return the subject of requests for all live grants of a node (no stream)."""
    return f"hami.grants.snapshot.{token_of(node)}"


def readiness_subject(node: str) -> str:
    """Return the subject of requests whether an agent can take a pod (no stream)."""
    return f"hami.agents.readiness.{token_of(node)}"


def holdings_subject(node: str) -> str:
    """Return the subject of requests for the holders of a node's devices (no stream)."""
    return f"hami.agents.holdings.{token_of(node)}"


def claims_subject(node: str) -> str:
    """Return the subject of requests for the grant of a pod's ResourceClaims."""
    return f"hami.grants.claims.{token_of(node)}"


def reports_subject(node: str) -> str:
    """Return the subject of a node's reports on its grants."""
    return f"hami.reports.v1.{token_of(node)}"


def limits_subject(node: str) -> str:
    """Return the subject of a node's findings when it checks limits from outside."""
    return f"hami.limits.v1.{token_of(node)}"


def usage_subject(node: str) -> str:
    """Return the subject of a node's usage samples."""
    return f"hami.usage.v1.{token_of(node)}"


def ledger_quota_subject(namespace: str) -> str:
    """Return the subject of a namespace's quotas with the ledger's counts on them."""
    return f"hami.ledger.v1.quota.{namespace}"


def event_subject(entity: str, verb: str) -> str:
    """Return the subject of facts of the ledger, such as `hami.events.v1.allocation.released`."""
    return f"hami.events.v1.{entity}.{verb}"


MAX_CARDS = 1024
"""Cards of one node; far beyond any machine."""
HEARTBEAT_S = 10.0
"""An agent repeats its inventory at least this often."""


PairScore = Annotated[int, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT)]


class MigProfileItem(BaseModel):
    """See domain.devices.MigProfile."""

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
    """Changes with every start of the agent."""
    sequence: Count
    """Grows within one agent_id; a lower one is stale."""
    observed_at: AwareDatetime
    """By the node's own clock: good for its skew, not for an order."""
    devices: tuple[InventoryDevice, ...]
    pair_scores: dict[str, dict[str, PairScore]] = Field(default_factory=dict)
    malformed: tuple[str, ...] = Field(default=(), exclude=True)
    """Faults of cards that could not be read; the others are in `devices`."""

    @model_validator(mode="wrap")
    @classmethod
    def _leave_out_malformed_cards(
        cls, data: Any, handler: ModelWrapValidatorHandler[Inventory]
    ) -> Inventory:
        """One card that can't be read takes no other with it."""
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
    """All live grants of a node; `complete` is False if the ledger could not be read."""

    node: str
    complete: bool
    taken_at: AwareDatetime
    grants: tuple[GrantState, ...] = ()


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
    """A container got the Allocate response that was meant for another: its pod must end.

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


LIMITS_HEARTBEAT_S = 60.0
"""Interval in which a node reports that it checks, whatever it finds."""
LIMITS_BUSY_S = 10.0
"""Interval while a container is beyond its grant."""
MAX_FINDINGS = 512
"""Findings of one message; the worst come first."""


class LimitFinding(BaseModel):
    """One container on one card, not in order."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str = Field(min_length=1, max_length=64)
    namespace: str = Field(default="", max_length=63)
    pod: str = Field(default="", max_length=253)
    """Both empty where the node does not know the pod's name."""
    container: str = Field(default="", max_length=63)
    """Empty: it is not known which of the pod's."""
    uuid: str = Field(min_length=1, max_length=128)
    """The card's."""
    state: Literal["exceeded", "bypassed", "unknown"]
    since: AwareDatetime
    """The first look that found it so."""
    held_mib: Amount | None = None
    """At the last look, by the driver's report; None: the driver does not know."""
    peak_mib: Amount = 0
    granted_mib: Amount = 0
    violating: bool = False
    """The last look found it so too; otherwise its state only lasts until it was well for a
    while."""
    reason: str = Field(default="", max_length=512)


class LimitCheck(NodePayload):
    """All findings of one node at one moment, so the last one is enough to know what is so.

    They are kept for a day, so that no period is lost while nobody reads.
    """

    subject_of = staticmethod(limits_subject)

    agent_id: str
    sequence: Count
    """Ascending per agent_id."""
    checked_at: AwareDatetime
    containers: Amount = 0
    """Containers with a grant that were compared."""
    settled: bool = True
    """False just after the agent's start: who is not in `findings` may yet be found."""
    findings: tuple[LimitFinding, ...] = Field(default=(), max_length=MAX_FINDINGS)


USAGE_HEARTBEAT_S = 60
"""Interval in which a node's agent reports everything, changed or not."""
USAGE_MAX_ROUNDS = 60
"""After so many rounds too: what one report can make a reader store has a bound."""
USAGE_MAX_ROWS = 100_000
"""Samples of one report with all of its rounds. No report of distinct slices that fits into a
message of the bus (1 MiB) has more."""
MAX_SAMPLES = 4096
"""Containers of one round."""

Name = Annotated[str, Field(max_length=253)]
Bytes = Annotated[int, Field(ge=0, le=2**44)]
"""The largest memory of one card: 16 TiB, a hundred times today's largest."""
Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
"""The limit of one card. A container's covers a moment, and may be above 100."""
Figure = Annotated[float, Field(ge=-1000, le=100_000, allow_inf_nan=False)]
"""Degrees and watts."""


class DeviceSample(BaseModel):
    """One card at one moment; None is unknown, never 0."""

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
    """One container's slice of one card at one moment, from its shared region."""

    model_config = ConfigDict(frozen=True)

    pod_uid: Name = Field(min_length=1)
    namespace: Name
    pod: Name
    container: Name
    vdevice_index: Amount
    uuid: Name
    memory_used_bytes: Bytes | None = None
    memory_limit_bytes: Bytes | None = None
    """None: unknown; 0: there is none."""
    context_bytes: Bytes | None = None
    module_bytes: Bytes | None = None
    buffer_bytes: Bytes | None = None
    core_percent: Percent | None = None
    core_limit_percent: Amount | None = None
    """None: unknown; 0: there is none."""
    processes: Amount = 0
    """Living ones that use the card's library."""
    last_kernel_at: datetime | None = None


class Unchanged(BaseModel):
    """Samples that were reported before and read the same in some rounds, and in none after."""

    model_config = ConfigDict(frozen=True)

    rounds: PositiveInt
    """In so many, the last ones of the report's `earlier_rounds`."""
    devices: tuple[DeviceSample, ...] = Field(default=(), max_length=MAX_CARDS)
    containers: tuple[ContainerSample, ...] = Field(default=(), max_length=MAX_SAMPLES)


class Usage(NodePayload):
    """Changes of one node's use since its last report.

    Together the reports hold all that the agent saw in each round, as if it had reported it all.
    """

    subject_of = staticmethod(usage_subject)

    agent_id: Name
    sequence: Count
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...] = Field(max_length=MAX_CARDS)
    """Cards that are new or changed at `sampled_at`; all in the first round of a heartbeat."""
    containers: tuple[ContainerSample, ...] = Field(max_length=MAX_SAMPLES)
    """Containers that are new or changed, like `devices`."""
    unchanged: tuple[Unchanged, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """Runs of equal samples that ended with this report; those that continue are not in it yet."""
    earlier_rounds: tuple[AwareDatetime, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """The moments of the rounds that `unchanged` is about, ascending."""

    @property
    def rows(self) -> int:
        """Samples that a reader stores for it."""
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
    """A change of an allocation's state, except to `binding`; its subject ends in the state."""

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
