"""Settings of hami-webhook: variables with the prefix HAMI_WEBHOOK_."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hamicommon.admission.verdicts import NeverFits
from hamicommon.settings import (
    AdmissionSettings,
    KubernetesSettings,
    NatsSettings,
    TelemetrySettings,
)
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OptionalNats(NatsSettings):
    """Connection to the bus, which is optional here."""

    url: str = Field(default="", description="nats://host:port; empty: no bus")


class Settings(BaseSettings):
    """Settings of the webhook, which needs no database and no right in the cluster.

    The bus is of use (`HAMI_NATS_URL`), and not needed: a review is answered without it.
    """

    model_config = SettingsConfigDict(env_prefix="HAMI_WEBHOOK_")

    http_bind: str = Field(
        default="0.0.0.0:8443", description="host:port of POST /webhook, over TLS"
    )
    probe_bind: str = Field(
        default="",
        description=(
            "host:port of /healthz, /readyz and /metrics without TLS, for probes and Prometheus; "
            "empty: only beside /webhook"
        ),
    )
    tls_cert_file: Path = Field(description="certificate chain in PEM form; reloaded on change")
    tls_key_file: Path = Field(description="its private key in PEM form; reloaded on change")
    scheduler_name: str = Field(
        default="hami-scheduler",
        description="written to spec.schedulerName; empty: unchanged",
    )
    force_overwrite_default_scheduler: bool = Field(
        default=True,
        description="treat pods that name default-scheduler as if they named no scheduler",
    )
    device_config_file: Path | None = Field(
        default=None, description="HAMi's device-config.yaml; absent: the defaults of every vendor"
    )
    enable_ascend: bool = Field(
        default=False,
        description="serve the Ascend chips listed under `vnpus` in device-config.yaml",
    )
    enable_iluvatar: bool = Field(
        default=False,
        description="serve the Iluvatar chips listed under `iluvatars` in device-config.yaml",
    )
    never_fits: NeverFits = Field(
        default="warn",
        description=(
            "pods that no node could take if nothing were granted: deny, warn, or off. An "
            "autoscaler that makes GPU nodes for waiting pods needs warn or off"
        ),
    )
    dra: Literal["on", "off"] = Field(
        default="off",
        description=(
            "pods with hami.io/front-end: dra ask by a ResourceClaim in place of limits; the "
            "scheduler makes their templates (HAMI_SCHEDULER_CLAIM_TEMPLATES, docs/dra.md)"
        ),
    )
    mark_slices: Literal["on", "off"] = Field(
        default="off",
        description=(
            "pods that ask for cards get hami.io/slice, so that autoscalers leave them to "
            "HAMI_SCHEDULER_SCALE (docs/scaling.md)"
        ),
    )
    fail_policy: Literal["closed", "open"] = Field(
        default="closed",
        description=(
            "when this service itself fails on a pod: closed refuses the pod with a sentence, open "
            "lets it pass untouched with a warning (then the node's check before a start is the "
            "net). The API server's failurePolicy is the same choice for when we can't be reached."
        ),
    )
    admission: AdmissionSettings = Field(
        default_factory=AdmissionSettings, description="settings that pods must not change"
    )
    max_body_mib: int = Field(
        default=8,
        ge=1,
        le=64,
        description="maximum size of a review; the API server's own limit is 3",
    )
    drain_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="keep serving this long after SIGTERM, not ready, while the Service learns it",
    )
    nats: OptionalNats = Field(
        default_factory=OptionalNats,
        description=(
            "where the cluster's cards and the ledger's quota numbers are learnt from; without a "
            "url, or while the bus is unavailable, pods are admitted without them, which the "
            "audit annotations show"
        ),
    )
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)


class RenewalSettings(BaseSettings):
    """Settings of `hami-webhook-certificate`."""

    model_config = SettingsConfigDict(env_prefix="HAMI_WEBHOOK_CERTIFICATE_")

    namespace: str = Field(
        default="hami-system", description="namespace of the Secrets and the Service"
    )
    service: str = Field(
        default="hami-webhook", description="the Service that the API server calls"
    )
    authority_secret: str = Field(
        default="hami-ca", description="Secret of the certificate authority and its key"
    )
    serving_secret: str = Field(
        default="hami-webhook-tls", description="Secret of the webhook's serving certificate"
    )
    issue: bool = Field(
        default=True,
        description=(
            "make and renew; false: something else does (cert-manager), by the authority that "
            "hami-bootstrap makes all the same; only restart"
        ),
    )
    servers: tuple[str, ...] = Field(
        default=("hami-scheduler", "hami-postgres", "hami-redis", "hami-nats"),
        description="Services beside the webhook; their Secrets are NAME-tls",
    )
    restarted: tuple[str, ...] = Field(
        default=("hami-postgres", "hami-redis", "hami-nats"),
        description="StatefulSets that read their certificate only at the start",
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @property
    def names(self) -> tuple[str, ...]:
        """DNS names of the webhook for the API server and probes."""
        return self.names_of(self.service)

    def names_of(self, service: str) -> tuple[str, ...]:
        """Return DNS names of a Service inside the cluster and for its probes."""
        inside = f"{service}.{self.namespace}"
        return (f"{inside}.svc", f"{inside}.svc.cluster.local", inside, service, "localhost")

    @staticmethod
    def secret_of(name: str) -> str:
        """Return the Secret of a server's certificate."""
        return f"{name}-tls"
