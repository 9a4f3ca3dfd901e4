"""Settings of hami-metrics; every field is an environment variable with the prefix HAMI_METRICS_.

The backends are the groups of `hamicommon.settings` (HAMI_POSTGRES_..., HAMI_NATS_...).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hamicommon.events import USAGE_HEARTBEAT_S
from hamicommon.settings import (
    KubernetesSettings,
    NatsSettings,
    PostgresSettings,
    SecretAddress,
    TelemetrySettings,
)
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from hami_metrics.domain.redaction import ShowOwners


class Settings(BaseSettings):
    """Settings of the metrics service."""

    model_config = SettingsConfigDict(env_prefix="HAMI_METRICS_")

    http_bind: str = Field(
        default="0.0.0.0:9395", description="host:port of /metrics, /healthz and /readyz"
    )
    scrape_tokens: bool = Field(
        default=False,
        description="require a Kubernetes token on /metrics whose user may get that path",
    )
    scrape_audience: str = Field(
        default="hami-metrics",
        description="audience of those tokens; empty: the API server's own",
    )
    legacy_metrics: bool = Field(
        default=False,
        description="also export the scheduler metrics that HAMi had before 2.6 (--legacy-metrics)",
    )
    api_tokens: bool = Field(
        default=False,
        description="require a Kubernetes token on /api/v1 (ClusterRoles hami-reader, hami-viewer);"
        " if false, only callers on the same machine are answered",
    )
    api_audience: str = Field(
        default="", description="audience of those tokens; empty: the API server's own"
    )
    published_locally: bool = Field(
        default=False,
        description="the ports are published on this machine only, as with docker compose: if no"
        " token is required, callers from every address count as local",
    )
    show_owners: ShowOwners = Field(
        default=ShowOwners.SIZES,
        description="what users see of slices in namespaces that they may not list: names,"
        " namespaces or sizes",
    )
    price_list: Path | None = Field(
        default=None,
        description="JSON file with the price of a card-hour by type; unset: bills have no costs",
    )
    questions_dsn: SecretAddress = Field(
        default=SecretStr(""),
        description="DSN of a streaming replica that answers saved queries and bills, as of what it"
        " has replayed; empty: HAMI_POSTGRES_DSN",
    )
    question_connections: int = Field(
        default=4,
        ge=1,
        le=64,
        description="maximum number of concurrent saved queries on the ledger",
    )
    pages_bind: str = Field(
        default="",
        description="host:port of the operators' pages; empty: no pages. A host other than the"
        " loopback device requires pages_identity=token",
    )
    pages_identity: Literal["none", "token", "proxy"] = Field(
        default="none",
        description="how users of the pages are identified: none (everybody on this machine), token"
        " (a Kubernetes token), proxy (X-Forwarded-User of a proxy on this machine)",
    )
    pages_groups_header: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]*$",
        description="with pages_identity=proxy: the header in which the proxy names the user's"
        " groups, separated by commas; empty: users have no groups",
    )
    pages_audience: str = Field(
        default="hami-metrics",
        description="audience of the pages' tokens; empty: the API server's own",
    )
    pages_traces: Path | None = Field(
        default=None,
        description="folder of finished spans (a file of JSON lines per service) that a pod's page"
        " draws; unset: spans are only at the collector",
    )
    pages_trace_url: str = Field(
        default="",
        pattern=r"^$|^https?://[^\s]+\{trace_id\}[^\s]*$",
        description="address of a trace in a viewer, such as http://jaeger:16686/trace/{trace_id};"
        " empty: a pod's page has no link",
    )
    snapshot_interval_s: float = Field(
        default=5.0, ge=0.1, le=300, description="how often the ledger is read for Prometheus"
    )
    snapshot_stale_s: float = Field(
        default=30.0,
        gt=0,
        description="maximum age of a reading; the samples of an older one disappear",
    )
    rollup_interval_s: float = Field(
        default=15.0, ge=0.1, le=300, description="how often finished buckets are rolled up"
    )
    rollup_grace_s: float = Field(
        default=USAGE_HEARTBEAT_S + 20.0,
        ge=0,
        description="a bucket counts as finished this long after its end",
    )
    raw_retention_days: int = Field(default=3, ge=1, description="days of raw samples kept")
    fine_retention_days: int = Field(default=14, ge=1, description="days of 5-minute sums kept")
    coarse_retention_days: int = Field(default=400, ge=1, description="days of hourly sums kept")
    day_retention_days: int = Field(
        default=1830, ge=1, description="days of daily sums per namespace kept"
    )
    refusal_retention_days: int = Field(
        default=90, ge=0, le=36_500, description="days of refusals at admission kept; 0: forever"
    )
    drain_s: float = Field(
        default=0.0, ge=0, le=60, description="how long to keep serving, not ready, after SIGTERM"
    )
    postgres: PostgresSettings = Field(
        default_factory=PostgresSettings  # type: ignore[arg-type]  # its DSN is a variable
    )
    nats: NatsSettings = Field(
        default_factory=NatsSettings  # type: ignore[arg-type]  # its URL is a variable
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
