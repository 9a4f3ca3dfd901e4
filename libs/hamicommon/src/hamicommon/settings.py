"""Settings that several services share as groups in their own `Settings`.

A group reads plain `HAMI_...` variables, because all services of one installation use the same
backends; a setting of only one service has that service's prefix. Built once, in `__main__`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from hamicommon.errors import InvalidRequest

logger = logging.getLogger(__name__)

_SERVICE_LINK = re.compile(r"(^|_)(SERVICE_(HOST|PORT)|PORT(_\d+_|$))")
"""Variables that Kubernetes sets for each Service of a namespace."""
_AUTHORITY = re.compile(r"[^:/?#]+://([^/?#]*)(.*)", re.DOTALL)


def _whole_login(address: SecretStr) -> SecretStr:
    """Refuse an address in which an unescaped character ends the password early.

    The rest would be parsed as a port, a path or a host, and any message about a failed connection
    would repeat it.
    """
    parts = _AUTHORITY.fullmatch(address.get_secret_value())
    if parts is not None and (
        (":" in parts[1] and "@" not in parts[1] and "@" in parts[2])
        or "[" in parts[1].rpartition("@")[0]
    ):
        raise ValueError("write /, ?, # and [ of the password as %2F, %3F, %23 and %5B")
    return address


SecretAddress = Annotated[SecretStr, AfterValidator(_whole_login)]
"""Address that contains a password."""


class PostgresSettings(BaseSettings):
    """Connection to the ledger."""

    model_config = SettingsConfigDict(env_prefix="HAMI_POSTGRES_")

    dsn: SecretAddress = Field(
        description="libpq-style URL, postgresql://user:password@host:port/name"
    )
    pool_max: int = Field(default=16, ge=1, description="maximum number of connections")
    connect_timeout_s: float = Field(default=5.0, gt=0)
    command_timeout_s: float = Field(default=10.0, gt=0, description="time limit of one statement")


class RedisSettings(BaseSettings):
    """Connection to Redis, which keeps the node locks."""

    model_config = SettingsConfigDict(env_prefix="HAMI_REDIS_")

    url: SecretAddress = Field(description="redis://[:password@]host:port/db")
    timeout_s: float = Field(default=1.0, gt=0, description="time limit of connecting")


class NatsSettings(BaseSettings):
    """Connection to NATS, and the user there."""

    model_config = SettingsConfigDict(env_prefix="HAMI_NATS_")

    url: str = Field(description="nats://host:port, several joined by commas")
    user: str = Field(default="", description="empty: no authentication")
    password: SecretStr = Field(default=SecretStr(""))
    token_file: Path | None = Field(
        default=None,
        description="in place of user and password: a service-account token, read at every login",
    )
    tls_ca_file: Path | None = Field(default=None, description="CA of the server's certificate")
    connect_timeout_s: float = Field(default=2.0, gt=0)
    stream_replicas: Literal[1, 3, 5] = Field(
        default=1,
        description="replicas of each stream in a NATS cluster; 3 survive the loss of one server",
    )


class KubernetesSettings(BaseSettings):
    """Connection to the API server."""

    model_config = SettingsConfigDict(env_prefix="")

    kubeconfig: Path | None = Field(
        default=None, description="file; absent: the pod's service account"
    )


class ServiceAddress(BaseSettings):
    """Address of the API server, as Kubernetes sets it in every pod."""

    model_config = SettingsConfigDict(env_prefix="KUBERNETES_SERVICE_")

    host: str = Field(default="", description="address; empty: not in a pod")
    port: str = Field(default="", description="port")


class TelemetrySettings(BaseSettings):
    """Settings of logs, traces and metrics."""

    model_config = SettingsConfigDict(env_prefix="HAMI_TELEMETRY_")

    cluster_name: str = Field(
        default="",
        max_length=253,
        pattern=r"^[\w.:/@-]*$",
        description="the cluster's name, as traces (k8s.cluster.name), metrics (target_info), "
        "pages and hamictl show it; empty: none is shown",
    )
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")
    traces_file: Path | None = Field(
        default=None, description="append finished spans here, one JSON object per line"
    )
    otlp_endpoint: str = Field(
        default="", description="OTLP/HTTP base address, for example http://collector:4318"
    )


TamperingMode = Literal["refuse", "strip", "allow"]
HOST_FOLDERS = (
    *("/usr/local/vgpu", "/var/lib/hami", "/var/lib/kubelet", "/run/cdi", "/etc/cdi", "/proc"),
    *("/run/containerd", "/run/crio", "/run/docker.sock"),
)
"""Node's paths that a pod with a slice must not mount.

They hold limits and accounts of all pods, the registered devices, other pods' processes, and
sockets that start any container.
"""


def _comma_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_comma_list)]


class AdmissionSettings(BaseSettings):
    """Settings of fields that pods may not set, used by the webhook and the scheduler's /filter."""

    model_config = SettingsConfigDict(env_prefix="HAMI_ADMISSION_")

    tampering: TamperingMode = Field(
        default="refuse",
        description=(
            "variables, mounts, host namespaces and capabilities that undo a slice: refuse the "
            "pod, strip them from it (/filter refuses, it can't strip), or allow them, as HAMi does"
        ),
    )
    trusted_namespaces: CommaList = Field(
        default=(),
        description="comma list of namespaces whose pods are exempt; *: all",
    )
    priority_namespaces: CommaList = Field(
        default=(),
        description=(
            "comma list of namespaces whose pods may go before others (nvidia.com/priority below "
            "1); *: all, as with HAMi"
        ),
    )
    host_folders: CommaList = Field(
        default=HOST_FOLDERS,
        description=(
            "comma list of the node's folders that no pod with a card may mount, nor what is above "
            "or below them; HOOK_PATH/vgpu and STATE_DIR of the node-agents belong to them"
        ),
    )


class FailpointSettings(BaseSettings):
    """Settings of injected faults, for tests only (see `fault_injection`)."""

    model_config = SettingsConfigDict(env_prefix="HAMI_FAILPOINTS_")

    file: Path | None = Field(default=None, description="description of the faults; unset: none")


def describe(error: ValidationError, settings: type[BaseSettings]) -> InvalidRequest:
    """Convert pydantic's error about `settings` into one sentence that names the variables.

    The error may also be about one of its groups. The value is omitted: it may be a secret.
    """
    prefix = _prefix_of(error.title, settings)
    parts = []
    for item in error.errors(include_input=False, include_url=False):
        name = "_".join(str(part) for part in item["loc"]).upper()
        parts.append(f"{prefix}{name}: {item['msg']}" if name else item["msg"])
    return InvalidRequest("the settings are not usable: " + "; ".join(parts))


def _prefix_of(class_name: str, settings: type[BaseSettings]) -> str:
    """Return the prefix of the variables of these settings, or of their group of that name."""
    groups = [field.annotation for field in settings.model_fields.values()]
    for known in (settings, *groups):
        if isinstance(known, type) and known.__name__ == class_name:
            config = getattr(known, "model_config", {})
            return str(config.get("env_prefix", "")).upper()
    return ""


def unknown_variables(
    settings: type[BaseSettings], variables: Iterable[str], *, others: tuple[str, ...] = ()
) -> list[str]:
    """Return the variables with the prefix of these settings that set none of them.

    Names that begin with one of `others` belong to another program.
    """
    prefix = str(settings.model_config.get("env_prefix", ""))
    known = {f"{prefix}{name}".upper() for name in settings.model_fields}
    return sorted(
        name
        for name in variables
        if name.startswith(prefix)
        and not name.startswith(others)
        and name not in known
        and not _SERVICE_LINK.search(name.removeprefix(prefix))
    )


def log_unknown_variables(settings: type[BaseSettings], *, others: tuple[str, ...] = ()) -> None:
    """Log each variable that looks like one of these settings and is none: removed, or mistyped."""
    variables = EnvSettingsSource(settings, case_sensitive=True).env_vars
    for name in unknown_variables(settings, variables, others=others):
        logger.warning("Ignoring a variable that is no setting", extra={"variable": name})
