"""Processes to run: a server's plan, a child of the supervisor, a step, and their health checks.

Plans are made by `postgres.prepare`, `nats.prepare`, `valkey.prepare`, specs by `hamilocal.system`;
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
    """The server does not answer yet; the text names what it did instead."""


class ServerError(Exception):
    """A server cannot be prepared, started or stopped; the text is one sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """How to run one server.

    `prefix` is what the program must be run under: empty, or a change of user that ends in an
    exec. `probe` asks once, by the server's own protocol, within a second; it raises
    `NotReadyError` until the server serves. `before_start` clears what a killed predecessor left;
    it is called before every start. `stop_signal` asks for a clean stop that does not wait for
    clients.
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
        """The whole command line; the process it makes is the server itself."""
        return (*self.prefix, *self.argv)


logger = logging.getLogger(__name__)

HealthCheck = Callable[[], Awaitable[None]]
"""Asks once whether the child serves; raises NotReadyError with the reason until it does."""

_HTTP_TIMEOUT_S = 2.0
_TIMEOUT_S = 5.0


async def why_unhealthy(health: HealthCheck | None) -> str | None:
    """Why the child does not serve, or None if it does (or if there is nothing to ask)."""
    if health is None:
        return None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await health()
    except NotReadyError as exc:
        return str(exc)
    except TimeoutError:
        return f"no answer within {_TIMEOUT_S:g} s"
    except Exception as exc:  # a check that breaks must not end the system it watches
        logger.exception("Failed to run a health check")
        return f"the health check broke: {str(exc) or type(exc).__name__}"
    return None


def http_health(url: str, *, ca_file: Path | None = None) -> HealthCheck:
    """Healthy when GET `url` answers 2xx; `ca_file` has the authority of an https:// address."""
    # Made once: httpx reads the machine's 140 authorities otherwise, 30 ms for each question.
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
    """A blocking probe, asked in a thread."""

    async def check() -> None:
        await asyncio.to_thread(probe)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process that runs until the system stops.

    `after` names children that must be ready before its first start. `env` is added to our own
    environment. `prepare` runs before every start, restarts too (it may block: it gets a thread).
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
    """Something to do once, such as migrations; it is repeated when it raises."""

    name: str
    run: Callable[[], Awaitable[None]]
    after: tuple[str, ...] = ()
    start_timeout_s: float = 120.0


Spec = ChildSpec | StepSpec


def server_child(plan: ServerPlan, *, after: tuple[str, ...] = ()) -> ChildSpec:
    """An embedded server as a child."""
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
