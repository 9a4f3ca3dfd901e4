"""All settings of this service; `__main__` builds them once from the environment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from hamicommon.access.checks import host_name, is_loopback
from hamicommon.k8s.annotations import split_list
from hamicommon.scaling.node_types import GROUP_LABELS
from hamicommon.settings import (
    AdmissionSettings,
    FailpointSettings,
    KubernetesSettings,
    NatsSettings,
    PostgresSettings,
    RedisSettings,
    TelemetrySettings,
)
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

MAX_LABELS = 16
"""Labels of a pod that are kept with each of its grants."""
MIN_KEPT_DAYS = 30
"""Age below which the ledger lets nothing be removed (migration 0017)."""


def _for_ever_or_long(days: int) -> int:
    if 0 < days < MIN_KEPT_DAYS:
        raise ValueError(f"{days} days: expected 0 (forever) or at least {MIN_KEPT_DAYS}")
    return days


KeptDays = Annotated[int, Field(ge=0, le=36_500), AfterValidator(_for_ever_or_long)]
"""Days that history is kept."""


class Settings(BaseSettings):
    """`HAMI_SCHEDULER_*`, plus the groups that all services share."""

    model_config = SettingsConfigDict(env_prefix="HAMI_SCHEDULER_", use_attribute_docstrings=True)

    http_bind: str = Field(default="127.0.0.1:9443", pattern=r"^.*:\d+$")
    """Address (host:port) of the extender; it asks for no login, so on loopback."""
    pod_name: str = Field(default_factory=socket.gethostname, min_length=1)
    """Host name of this pod, with which kube-scheduler beside this process begins its identity
    (with lease_name); default: that of this process."""
    lease_name: str = ""
    """The Lease of kube-scheduler's leader election: the replica in its holder's pod is active, the
    others stand by; empty: this one is always active."""
    lease_namespace: str = Field(default="hami-system", min_length=1)
    """The namespace of lease_name."""
    hold_s: NonNegativeFloat = 0.0
    """Time in which a replica that becomes active refuses calls while ledger, pods and nodes are
    compared (with lease_name); for a ledger from a backup."""
    kube_scheduler: str = Field(default="127.0.0.1:10259", pattern=r"^(.+:\d+)?$")
    """Address (host:port) where kube-scheduler beside this process serves; the Lease of one that
    died is released, so that another replica need not wait until it expires; empty: it is not
    looked at."""
    tls_cert_file: Path | None = None
    """Certificate (PEM) of operator_bind; with tls_key_file."""
    tls_key_file: Path | None = None
    """Private key (PEM) of operator_bind."""
    operator_bind: str = Field(default="", pattern=r"^(.*:\d+)?$")
    """Address (host:port) of the query API (/v1/) for hamictl: HTTPS with tls_cert_file, callers
    show Kubernetes tokens; empty: http_bind serves it."""
    operator_audience: str = "hami-scheduler"
    """Audience of those tokens; empty: the API server's own, so that any login of the cluster
    works, and this service could use it there."""
    published_locally: bool = False
    """Whether only this machine reaches http_bind, as with docker compose: it may serve /v1/
    without a certificate on every address then."""
    probe_bind: str = Field(default="", pattern=r"^(.*:\d+)?$")
    """Address (host:port) of /healthz, /readyz and /metrics without TLS; empty: http_bind serves
    them."""
    scheduler_name: str = Field(default="hami-scheduler", min_length=1)
    """Name that our pods have in spec.schedulerName."""
    node_scheduler_policy: Literal["binpack", "spread", "fragmentation"] = "binpack"
    """Node policy of pods that name none (docs/packing.md)."""
    gpu_scheduler_policy: str = ""
    """Card policy of pods that name none: binpack, spread, topology-aware, mutex, numa or a comma
    list of them, or fragmentation; empty: fragmentation under that node policy, otherwise
    spread."""
    host_cpu_in_score: bool = True
    """Whether the node policy fragmentation looks at what is free of the hosts' CPU."""
    usual_pods_file: Path | None = None
    """Usual pods (YAML) for the node policy fragmentation (docs/packing.md); absent: learned from
    those that arrive."""
    events: Literal["refusals", "all"] = "refusals"
    """Events that are shown on pods: refusals and failures, or HAMi's Normal ones too, which
    pods on nodes without our agent have anyway."""
    label: bool = False
    """Label bound pods hami.io/vgpu-node, as pods on nodes without our agent are."""
    claim_templates: Literal["on", "off"] = "off"
    """Make and delete the ResourceClaimTemplates of pods that are converted by hami.io/front-end:
    dra (docs/dra.md)."""
    reservation_s: PositiveFloat = 10.0
    """How long a placement that /filter assumed may wait for /bind; longer, but at most 5 minutes,
    if kube-scheduler has written the node into nominatedNodeName."""
    groups: Literal["barrier", "bundle", "off"] = "barrier"
    """Pods of a group that start together: barrier: decided together, and held at /bind until all
    have come, unless a plugin of kube-scheduler holds them; bundle: decided together; off: each is
    placed alone."""
    group_bind_s: PositiveFloat = 25.0
    """How long pods of a group wait for each other at /bind, five sixths of bind_timeout_s at
    most: kube-scheduler must not give the calls up first."""
    commit_window_s: NonNegativeFloat = 0.02
    """Minimum time between the begins of two commits of grants, so that those of a burst are
    written together; 0: without a pause."""
    bound_delay_s: NonNegativeFloat = 1.0
    """How long the writing of `bound` waits for the node's report, to write both as one step."""
    bind_timeout_s: float = Field(default=30.0, gt=5)
    """The extender time-out (httpTimeout) of kube-scheduler."""
    lock_s: PositiveFloat = 30.0
    """Time after which a node lock expires."""
    release_unconfirmed_s: PositiveFloat = 300.0
    """Time after which a deleted pod's slices are freed if its node is silent."""
    agent_silent_s: PositiveFloat = 75.0
    """Silence of a node's agent, which was heard before, after which the node gets no pods."""
    bound_late_s: PositiveFloat = 60.0
    """Time after which a bound pod without its cards is shown with the reason."""
    reconcile_s: PositiveFloat = 15.0
    """Interval of the comparisons of ledger, pods and view."""
    enforcement: Literal["report", "evict"] = "report"
    """Treatment of pods that hold more than their grant, or use cards past it: report: history,
    drift and an event; evict: they are deleted as well, with the reason."""
    evict_after_s: float = Field(default=30.0, ge=10)
    """Time for which a node must have seen a pod beyond its grant, and see it again, until the pod
    is ended (with enforcement=evict)."""
    evictions_per_minute: PositiveInt = 5
    """Maximum number of pods that are ended in a minute, in the whole cluster."""
    preemption_mode: Literal["off", "preview", "on"] = "preview"
    """off: no plans of preemption; preview: hamictl preempt shows them, no pod is evicted; on: pods
    of lower priority are evicted for a pod that waits."""
    preemption_after_s: PositiveFloat = 5.0
    """How long a pod waits before pods are preempted for it; its annotation
    hami.io/preemption-delay-seconds may ask for more."""
    preemption_room_s: PositiveFloat = 60.0
    """How long the cards are reserved for it after the longest grace period of the victims."""
    preemption_min_runtime_s: NonNegativeFloat = 0.0
    """Age below which a pod is not preempted."""
    preemptions_per_minute: PositiveInt = 10
    """Maximum number of pods preempted in a minute, in the whole cluster."""
    preemption_max_victims: PositiveInt = 8
    """Maximum number of pods preempted for one pod."""
    preemption_protected_namespaces: str = "kube-system,hami-system"
    """Comma list of namespaces whose pods are in no plan; others by the label
    hami.io/preemptible=false of the Namespace."""
    kueue: Literal["off", "on"] = "off"
    """on: Kueue's admission checks of hami.io/fits-as-slices are answered (docs/kueue.md)."""
    kueue_give_way_s: PositiveFloat = 300.0
    """How long a workload may hold its quota without fitting; then it is sent back for a minute."""
    kueue_booking_s: NonNegativeFloat = 30.0
    """How long the cards of an admitted workload are kept for its pods; 0: they are not."""
    scale: Literal["off", "plan", "on"] = "off"
    """off: no plans of nodes; plan: nodes that waiting pods need are shown; on: they are asked for,
    by placeholder pods for Cluster Autoscaler or Karpenter (docs/scaling.md)."""
    scale_after_s: PositiveFloat = 10.0
    """How long a pod waits before a node is wanted for it."""
    scale_timeout_s: PositiveFloat = 900.0
    """Time within which a node comes with its cards, or is given up."""
    scale_group_labels: str = ",".join(GROUP_LABELS)
    """Comma list of node labels; the value of the first that a node has names its type."""
    scale_types_file: Path | None = None
    """Node types (YAML) that the cluster never had, and bounds and prices of others; absent: the
    types of the nodes that were there."""
    scale_namespace: str = Field(default="hami-system", min_length=1)
    """The namespace of this pod, and of placeholders."""
    scale_image: str = ""
    """Image of placeholders, which can sleep; empty: that of this pod."""
    reap_s: PositiveFloat = 1.0
    """Interval of the looks for passed deadlines."""
    background_idle_s: NonNegativeFloat = 0.05
    """Idle time for which events, labels, decision records and announcements wait: no request was
    in flight; between two pods of a burst lie a few milliseconds."""
    background_max_delay_s: PositiveFloat = 2.0
    """Maximum time that they wait under a load that never pauses."""
    decision_days: PositiveInt = 14
    """Days that decisions are kept, for explain and SQL."""
    grant_days: KeptDays = 400
    """Days that ended grants and their events are kept, for accounts; 0: forever."""
    drift_days: KeptDays = 400
    """Days that the drift journal is kept; 0: forever."""
    health_days: KeptDays = 400
    """Days that health changes of cards are kept; 0: forever."""
    limit_days: KeptDays = 400
    """Days that periods in which containers were beyond their grants are kept; 0: forever."""
    call_days: KeptDays = 400
    """Days that calls of operators are kept; 0: forever."""
    capacity_days: KeptDays = 400
    """Days that the history of cards and quotas is kept; 0: forever."""
    card_days: KeptDays = 400
    """Days that cards are kept which are gone and which no grant names; 0: forever."""
    owner_labels: str = "app.kubernetes.io/name,app,team"
    """Comma list of the pod labels that are kept with each grant, for SQL by team or application;
    empty: none."""
    node_group_labels: str = "topology.kubernetes.io/rack,topology.kubernetes.io/zone"
    """Comma list of node labels; the first that a node has is its group on pages and in lists, such
    as its rack; empty: none."""
    device_config_file: Path | None = None
    """File in the form of HAMi's device-config.yaml; absent: the defaults."""
    enable_ascend: bool = False
    """Serve the chips that device-config.yaml lists under vnpus."""
    enable_iluvatar: bool = False
    """Serve the chips that device-config.yaml lists under iluvatars."""
    grant_key_file: Path
    """Ed25519 private key (PEM) that signs grants."""

    bus_login_key_file: Path | None = None
    """Ed25519 private key (PEM) of the bus account: node-agents may log in with their
    service-account tokens (NATS auth callout)."""
    bus_login_audience: str = "hami-nats"
    """Audience of those tokens."""
    bus_login_agents: str = Field(default="hami-system:hami-node-agent", pattern="^[^:]+:[^:]+$")
    """Name (namespace:name) of the node-agents' service account."""

    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    """Rules about pods that the webhook did not see."""
    postgres: PostgresSettings = Field(
        default_factory=PostgresSettings  # type: ignore[arg-type]  # its DSN is a variable
    )
    redis: RedisSettings = Field(
        default_factory=RedisSettings  # type: ignore[arg-type]  # its URL is a variable
    )
    nats: NatsSettings = Field(
        default_factory=NatsSettings  # type: ignore[arg-type]  # its URL is a variable
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    failpoints: FailpointSettings = Field(default_factory=FailpointSettings)

    @property
    def kept_labels(self) -> tuple[str, ...]:
        """The keys of `owner_labels`."""
        return split_list(self.owner_labels)

    @property
    def group_wait_s(self) -> float:
        """`group_bind_s`, within kube-scheduler's time-out."""
        return min(self.group_bind_s, self.bind_timeout_s * 5 / 6)

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if len(self.kept_labels) > MAX_LABELS:
            raise ValueError(f"owner_labels has {len(self.kept_labels)} keys: {MAX_LABELS} at most")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file must be given together")
        if self.operator_bind and self.tls_cert_file is None:
            raise ValueError("operator_bind needs tls_cert_file and tls_key_file: it takes tokens")
        if self.tls_cert_file is not None and not self.operator_bind:
            raise ValueError("tls_cert_file needs operator_bind: the extender's port has no TLS")
        if not (self.published_locally or is_loopback(host_name(self.http_bind))):
            raise ValueError(
                f"http_bind is {self.http_bind}, where any client could call /bind: use 127.0.0.1, "
                "and operator_bind for calls of operators from elsewhere"
            )
        return self
