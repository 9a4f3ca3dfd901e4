"""Find the installation that a command uses: the local system, or the settings' addresses.

A local system counts only while its supervisor lives, so that a stale `.hami/` never answers for a
real cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hamicommon.errors import InvalidRequest
from hamicommon.settings import PostgresSettings, describe
from hamilocal.supervisor.state_file import read_state, running_supervisor
from pydantic import SecretStr, ValidationError

from hamictl.scheduler_client import PAGE, SchedulerAddress, SchedulerClient, metrics_address
from hamictl.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Addresses of an installation; an empty one is unknown."""

    kubeconfig: Path | None
    scheduler: SchedulerAddress
    postgres_dsn: str
    local: bool
    metrics: SchedulerAddress
    """Address of hami-metrics."""
    traces: Path | None = None
    """Folder of the local system's spans."""
    pages_url: str = ""
    backends: Mapping[str, str] = field(default_factory=dict)
    """Addresses of Redis, NATS and a local system's Postgres, for checking them."""

    def need_metrics(self) -> SchedulerAddress:
        """Return the metrics service's address. Raises: InvalidRequest if unknown."""
        if not self.metrics.url:
            raise InvalidRequest(
                "the address of hami-metrics is unknown: start a local system with `hamictl up`, "
                f"or set HAMI_METRICS_URL=http(s)://host:port ({PAGE})"
            )
        return self.metrics

    def need_scheduler(self) -> SchedulerAddress:
        """Return the scheduler's address. Raises: InvalidRequest if unknown."""
        if not self.scheduler.url:
            raise InvalidRequest(
                "the address of the scheduler is unknown: start a local system with `hamictl up`, "
                f"or set HAMI_SCHEDULER_URL=https://host:port ({PAGE})"
            )
        return self.scheduler

    def scheduler_client(self) -> SchedulerClient:
        """Return a client of the scheduler. Raises: InvalidRequest if its address is unknown."""
        return SchedulerClient(self.need_scheduler())

    def metrics_client(self) -> SchedulerClient:
        """Return a client of the metrics service.

        Raises: InvalidRequest if its address is unknown.
        """
        return SchedulerClient(self.need_metrics())

    def need_kubeconfig(self) -> Path:
        """Return the kubeconfig. Raises: InvalidRequest if no cluster is known."""
        if self.kubeconfig is None:
            raise InvalidRequest(
                "no cluster is configured: start a local system with `hamictl up`, "
                "or set KUBECONFIG=FILE; one that runs is found from its own folder, or by "
                "HAMI_FOLDER"
            )
        return self.kubeconfig

    def need_postgres(self) -> str:
        """Return the ledger's address. Raises: InvalidRequest if unknown or invalid."""
        if not self.postgres_dsn:
            raise InvalidRequest(
                "the address of the ledger is unknown: start a local system with `hamictl up`, "
                "or set HAMI_POSTGRES_DSN=postgresql://user:password@host:port/name"
            )
        try:
            return PostgresSettings(dsn=SecretStr(self.postgres_dsn)).dsn.get_secret_value()
        except ValidationError as exc:
            raise describe(exc, PostgresSettings) from None


def find_target(settings: Settings | None = None) -> Installation:
    """Return the local system in `settings.folder` if it runs, otherwise the addresses."""
    settings = settings or Settings()
    path = settings.folder.absolute() / "state.json"
    state = read_state(path) if running_supervisor(path) else None
    if state is not None and "kubeconfig" in state:
        return Installation(
            kubeconfig=Path(state["kubeconfig"]),
            scheduler=SchedulerAddress(
                url=state["scheduler_url"], **_supervisor_record(state, "scheduler")
            ),
            postgres_dsn=state["postgres_dsn"],
            local=True,
            metrics=replace(
                metrics_address(state["metrics_url"].removesuffix("/metrics")),
                **_supervisor_record(state, "metrics"),
            ),
            traces=Path(state["traces"]),
            pages_url=str(state.get("pages_url") or ""),
            backends={
                "postgres": state["postgres_dsn"],
                "redis": state["redis_url"],
                "nats": state["nats_url"],
            },
        )
    return Installation(
        kubeconfig=settings.kubeconfig,
        scheduler=SchedulerAddress(
            url=settings.scheduler_url.rstrip("/"),
            ca_file=settings.scheduler_ca_file,
            token=settings.scheduler_token.get_secret_value(),
            token_file=settings.scheduler_token_file,
        ),
        postgres_dsn=settings.postgres_dsn.get_secret_value(),
        local=False,
        metrics=metrics_address(
            settings.metrics_url.rstrip("/"),
            ca_file=settings.metrics_ca_file,
            token=settings.metrics_token.get_secret_value(),
            token_file=settings.metrics_token_file,
        ),
        pages_url=settings.pages_url,
        backends={
            name: url
            for name, url in (("redis", settings.redis_url), ("nats", settings.nats_url))
            if url
        },
    )


def _supervisor_record(state: Mapping[str, Any], service: str) -> dict[str, Any]:
    """Return what the local system's supervisor recorded about one of its services."""
    entry = (state.get("services") or {}).get(service) or {}
    return {"log": str(entry.get("log") or ""), "restarts": int(entry.get("restarts") or 0)}
