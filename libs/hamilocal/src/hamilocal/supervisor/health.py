"""Whether a child serves: asked over HTTP, or by a server's own probe."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import httpx

from hamilocal.supervisor.plan import NotReadyError

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
        logger.exception("health check broken")
        return f"the health check broke: {str(exc) or type(exc).__name__}"
    return None


def http_health(url: str, *, verify: bool | str = True) -> HealthCheck:
    """Healthy when GET `url` answers 2xx; `verify` may name a CA file, or be False for loopback."""

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
