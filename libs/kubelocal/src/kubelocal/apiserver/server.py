"""The process: uvicorn over TLS around the application, and an orderly end of open watches."""

from __future__ import annotations

from types import FrameType

import uvicorn

from kubelocal.apiserver.bootstrap import open_registry
from kubelocal.apiserver.http.routes import build_app
from kubelocal.apiserver.registry import Registry
from kubelocal.apiserver.settings import Settings

# Watches end at once on a signal; this is for requests that wait for a webhook.
_GRACE_S = 3
# Idle connections of clients are kept longer than any of them waits between two calls.
_KEEP_ALIVE_S = 120


class _Server(uvicorn.Server):
    """Uvicorn waits for open answers before it ends: a watch would keep it for an hour."""

    def __init__(self, config: uvicorn.Config, registry: Registry) -> None:
        super().__init__(config)
        self._registry = registry

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._registry.stop()
        super().handle_exit(sig, frame)


async def serve(settings: Settings) -> None:
    """Serve until a signal. Raises: OSError where files or the port are not to be had."""
    async with open_registry(settings) as registry:
        config = uvicorn.Config(
            build_app(registry),
            host=settings.host,
            port=settings.port,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        await _Server(config, registry).serve()
