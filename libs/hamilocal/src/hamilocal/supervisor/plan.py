"""Descriptions of processes and steps for the supervisor, with health checks.

`postgres.prepare`, `nats.prepare` and `valkey.prepare` make plans, `hamilocal.system` makes specs;
`supervisor.Supervisor` runs them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx


class NotReadyError(Exception):
    """Error: the server is not ready; the message describes its answer or failure."""


class ServerError(Exception):
    """Error: a server can't be prepared, started or stopped; the message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Command, environment and health check of one server.

    `prefix` is a command that runs the program: empty, or a change of user that ends in an exec.
    `probe` asks once, by the server's own protocol, within a second; it raises `NotReadyError`
    until the server serves. `before_start` removes leftovers of a killed predecessor; it is called
    before every start. `stop_signal` requests a clean stop that does not wait for clients.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    log_path: Path
    url: str
    port: int
    probe: Callable[[], None]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0
    prefix: tuple[str, ...] = ()
    before_start: Callable[[], None] | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """Return the whole command line; its process is the server itself."""
        return (*self.prefix, *self.argv)


logger = logging.getLogger(__name__)

HealthCheck = Callable[[], Awaitable[None]]
"""Function that raises NotReadyError with the reason while the child does not serve."""

_HTTP_TIMEOUT_S = 2.0
_TIMEOUT_S = 5.0


async def why_unhealthy(health: HealthCheck | None) -> str | None:
    """Return why the child does not serve; None if it does, or has no check."""
    if health is None:
        return None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await health()
    except NotReadyError as exc:
        return str(exc)
    except TimeoutError:
        return f"no answer within {_TIMEOUT_S:g} s"
    except Exception as exc:  # a failing check must not end the system that it watches
        logger.exception("Failed to run a health check")
        return f"the health check broke: {str(exc) or type(exc).__name__}"
    return None


def http_health(url: str, *, ca_file: Path | None = None) -> HealthCheck:
    """Return a check that GET `url` answers 2xx; `ca_file` verifies an https:// address."""
    # Made once: otherwise httpx reads the machine's 140 authorities, 30 ms per request.
    verify = False if ca_file is None else ssl.create_default_context(cafile=ca_file)

    async def check() -> None:
        try:
            async with httpx.AsyncClient(verify=verify, timeout=_HTTP_TIMEOUT_S) as client:
                answer = await client.get(url)
        except (httpx.HTTPError, OSError) as exc:
            raise NotReadyError(f"{url}: {str(exc) or type(exc).__name__}") from exc
        if not answer.is_success:
            raise NotReadyError(f"{url} answers {answer.status_code}: {answer.text[:200]}")

    return check


def probe_health(probe: Callable[[], None]) -> HealthCheck:
    """Return a check that runs a blocking probe in a thread."""

    async def check() -> None:
        await asyncio.to_thread(probe)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Process that runs until the system stops.

    `after` names children that must be ready before its first start. `env` is added to our own
    environment. `prepare` runs before every start and restart (in a thread, so it may block).
    `urls` is copied into the state file. Without `health` it counts as ready once it runs.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    health: HealthCheck | None = None
    after: tuple[str, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Action that is done once, such as migrations; it is repeated if it raises."""

    name: str
    run: Callable[[], Awaitable[None]]
    after: tuple[str, ...] = ()
    start_timeout_s: float = 120.0


Spec = ChildSpec | StepSpec


def server_child(plan: ServerPlan, *, after: tuple[str, ...] = ()) -> ChildSpec:
    """Return an embedded server as a child."""
    return ChildSpec(
        name=plan.name,
        argv=plan.command,
        cwd=plan.cwd,
        env=plan.env,
        health=probe_health(plan.probe),
        after=after,
        urls={plan.name: plan.url},
        prepare=plan.before_start,
        stop_signal=plan.stop_signal,
        start_timeout_s=plan.start_timeout_s,
        stop_grace_s=plan.stop_grace_s,
    )
