"""All settings of this service; `__main__` builds them once from the environment."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from hamicommon.access.loopback import host_name, is_loopback
from hamicommon.k8s.annotations import split_list
from hamicommon.settings import (
    AdmissionSettings,
    FailpointSettings,
    KubernetesSettings,
    NatsSettings,
    PostgresSettings,
    RedisSettings,
    TelemetrySettings,
)
from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MOST_LABELS = 16
"""Of a pod, kept with each of its grants."""
LEAST_KEPT_DAYS = 30
"""The ledger lets nobody remove anything younger (migration 0017)."""


def _for_ever_or_long(days: int) -> int:
    if 0 < days < LEAST_KEPT_DAYS:
        raise ValueError(f"{days} days: 0 (for ever) or at least {LEAST_KEPT_DAYS} is wanted")
    return days


KeptDays = Annotated[int, Field(ge=0, le=36_500), AfterValidator(_for_ever_or_long)]
"""Days that history is kept."""


class Settings(BaseSettings):
    """`HAMI_SCHEDULER_*`, plus the groups that all services share."""

    model_config = SettingsConfigDict(env_prefix="HAMI_SCHEDULER_")

    http_bind: str = Field(
        default="127.0.0.1:9443",
        pattern=r"^.*:\d+$",
        description="host:port of the extender; it asks for no login, so on loopback",
    )
    pod_name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        description="with lease_name: the host name of this pod, with which kube-scheduler beside "
        "this process begins its identity; default: that of this process",
    )
    lease_name: str = Field(
        default="",
        description="the Lease of kube-scheduler's leader election: the replica in its holder's "
        "pod is active, the others stand by; empty: this one is always active",
    )
    lease_namespace: str = Field(
        default="hami-system", min_length=1, description="the namespace of lease_name"
    )
    hold_s: float = Field(
        default=0.0,
        ge=0,
        description="with lease_name: a replica that becomes active refuses calls for so long, "
        "while ledger, pods and nodes are compared; for a ledger from a backup",
    )
    kube_scheduler: str = Field(
        default="127.0.0.1:10259",
        pattern=r"^(.+:\d+)?$",
        description="host:port where kube-scheduler beside this process serves; the Lease of one "
        "that died is released, so that another replica need not wait until it expires; empty: "
        "it is not looked at",
    )
    tls_cert_file: Path | None = Field(
        default=None, description="PEM, of operator_bind; with tls_key_file"
    )
    tls_key_file: Path | None = Field(default=None, description="PEM")
    operator_bind: str = Field(
        default="",
        pattern=r"^(.*:\d+)?$",
        description="host:port of the query API (/v1/) for hamictl: HTTPS with tls_cert_file, "
        "callers show Kubernetes tokens; empty: http_bind serves it",
    )
    operator_audience: str = Field(
        default="hami-scheduler",
        description="audience of those tokens; empty: the API server's own, so that any login of "
        "the cluster works, and this service could use it there",
    )
    published_locally: bool = Field(
        default=False,
        description="only this machine reaches http_bind, as with docker compose: it may serve "
        "/v1/ without a certificate on every address",
    )
    probe_bind: str = Field(
        default="",
        pattern=r"^(.*:\d+)?$",
        description="host:port of /healthz, /readyz and /metrics without TLS; empty: http_bind "
        "serves them",
    )
    scheduler_name: str = Field(
        default="hami-scheduler", min_length=1, description="spec.schedulerName of our pods"
    )
    node_scheduler_policy: Literal["binpack", "spread", "fragmentation"] = Field(
        default="binpack", description="for pods that name none (docs/packing.md)"
    )
    gpu_scheduler_policy: str = Field(
        default="",
        description="binpack, spread, topology-aware, mutex, numa or a comma list of them, or "
        "fragmentation; empty: fragmentation under that node policy, else spread",
    )
    host_cpu_in_score: bool = Field(
        default=True,
        description="the node policy fragmentation looks at what is free of the hosts' CPU",
    )
    usual_pods_file: Path | None = Field(
        default=None,
        description="YAML, the usual pods that the node policy fragmentation goes by (docs/"
        "packing.md); absent: learned from those that arrive",
    )
    events: Literal["refusals", "all"] = Field(
        default="refusals",
        description="events on pods: refusals and failures, or HAMi's Normal ones too, which pods "
        "on nodes without our agent have anyway",
    )
    label: bool = Field(
        default=False,
        description="label bound pods hami.io/vgpu-node, as pods on nodes without our agent are",
    )
    claim_templates: Literal["on", "off"] = Field(
        default="off",
        description="make and delete the ResourceClaimTemplates of pods that are converted by "
        "hami.io/front-end: dra (docs/dra.md)",
    )
    allocate_at: Literal["filter", "bind"] = Field(
        default="filter",
        description="filter: choose node and cards in /filter; bind: answer all nodes that fit, "
        "and choose the cards at /bind",
    )
    reservation_s: float = Field(
        default=60.0,
        gt=0,
        description="how long a placement that /filter assumed may wait for /bind",
    )
    commit_window_s: float = Field(
        default=0.02,
        ge=0,
        description="two commits of grants begin at least this far apart, so that those of a burst "
        "are written together; 0: without a pause",
    )
    bound_delay_s: float = Field(
        default=1.0,
        ge=0,
        description="how long the writing of `bound` waits for the node's report, to write both as "
        "one step",
    )
    bind_timeout_s: float = Field(
        default=30.0, gt=5, description="the extender time-out (httpTimeout) of kube-scheduler"
    )
    lock_s: float = Field(
        default=30.0, gt=0, description="a node lock is freed by itself after this"
    )
    release_unconfirmed_s: float = Field(
        default=300.0,
        gt=0,
        description="a deleted pod's slices are freed then if its node is silent",
    )
    agent_silent_s: float = Field(
        default=75.0,
        gt=0,
        description="a node whose agent was heard before and not since gets no pods",
    )
    bound_late_s: float = Field(
        default=60.0,
        gt=0,
        description="a bound pod that has not got its cards is shown with the reason after this",
    )
    reconcile_s: float = Field(
        default=15.0, gt=0, description="between two comparisons of ledger, pods and view"
    )
    enforcement: Literal["report", "evict"] = Field(
        default="report",
        description="pods that hold more than their grant, or use cards past it: report: history, "
        "drift and an event; evict: they are deleted besides, with the reason",
    )
    evict_after_s: float = Field(
        default=30.0,
        ge=10,
        description="with enforcement=evict: a pod is ended when its node has seen it beyond its "
        "grant for so long, and sees it again",
    )
    evictions_per_minute: int = Field(
        default=5, ge=1, description="so many pods are ended in a minute, in the whole cluster"
    )
    reap_s: float = Field(default=1.0, gt=0, description="between two looks for passed deadlines")
    background_idle_s: float = Field(
        default=0.05,
        ge=0,
        description="events, labels, decision records and announcements wait until no request has "
        "been in flight for so long; between two pods of a burst lie a few milliseconds",
    )
    background_max_delay_s: float = Field(
        default=2.0,
        gt=0,
        description="they wait no longer than this under a load that never pauses: people read "
        "them, and other replicas follow the announcements",
    )
    decision_days: int = Field(
        default=14, ge=1, description="decisions are kept so many days, for explain and SQL"
    )
    grant_days: KeptDays = Field(
        default=400, description="grants that ended and their events, for accounts; 0: for ever"
    )
    drift_days: KeptDays = Field(default=400, description="the drift journal; 0: for ever")
    health_days: KeptDays = Field(default=400, description="health changes of cards; 0: for ever")
    limit_days: KeptDays = Field(
        default=400, description="periods in which containers were beyond their grants; 0: for ever"
    )
    call_days: KeptDays = Field(default=400, description="calls of operators; 0: for ever")
    capacity_days: KeptDays = Field(
        default=400, description="what cards and quotas were, over time; 0: for ever"
    )
    card_days: KeptDays = Field(
        default=400, description="cards that went and that no grant names; 0: for ever"
    )
    owner_labels: str = Field(
        default="app.kubernetes.io/name,app,team",
        description="comma list of the pod labels that are kept with each grant, for SQL by team "
        "or application; empty: none",
    )
    node_group_labels: str = Field(
        default="topology.kubernetes.io/rack,topology.kubernetes.io/zone",
        description="comma list of node labels; the first that a node has is its group on pages "
        "and in lists, such as its rack; empty: none",
    )
    device_config_file: Path | None = Field(
        default=None, description="HAMi's device-config.yaml; absent: the defaults"
    )
    enable_ascend: bool = Field(default=False, description="serve the chips of the block vnpus")
    enable_iluvatar: bool = Field(
        default=False, description="serve the chips of the block iluvatars"
    )
    grant_key_file: Path = Field(description="Ed25519 private key (PEM) that signs grants")

    bus_login_key_file: Path | None = Field(
        default=None,
        description="Ed25519 private key (PEM) of the bus account: node-agents may log in with "
        "their service-account tokens (NATS auth callout)",
    )
    bus_login_audience: str = Field(default="hami-nats", description="audience of those tokens")
    bus_login_agents: str = Field(
        default="hami-system:hami-node-agent",
        pattern="^[^:]+:[^:]+$",
        description="namespace:name of the node-agents' service account",
    )

    admission: AdmissionSettings = Field(
        default_factory=AdmissionSettings,
        description="what pods may not set, for those that the webhook did not see",
    )
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

    @model_validator(mode="after")
    def _few_labels(self) -> Settings:
        if len(self.kept_labels) > MOST_LABELS:
            raise ValueError(
                f"owner_labels has {len(self.kept_labels)} keys: {MOST_LABELS} at most"
            )
        return self

    @model_validator(mode="after")
    def _settings_that_need_others(self) -> Settings:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file must be given together")
        if self.operator_bind and self.tls_cert_file is None:
            raise ValueError("operator_bind needs tls_cert_file and tls_key_file: it takes tokens")
        if self.tls_cert_file is not None and not self.operator_bind:
            raise ValueError("tls_cert_file needs operator_bind: the extender's port has no TLS")
        if not (self.published_locally or is_loopback(host_name(self.http_bind))):
            raise ValueError(
                f"http_bind is {self.http_bind}, where anybody could call /bind: take 127.0.0.1, "
                "and operator_bind for calls of operators from elsewhere"
            )
        return self
