"""Runs the HTTP server and the background loops together: when one of them dies, all end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Iterator

import uvicorn

from hami_scheduler.bootstrap import open_service
from hami_scheduler.routes import create_app
from hami_scheduler.settings import Settings

logger = logging.getLogger(__name__)

# kube-scheduler keeps connections to the extender open; ours shall not be the side that closes
# one while a request is on its way.
KEEP_ALIVE_S = 120
# Binds that wait for a node lock end by their own time-out; more is not waited for.
SHUTDOWN_S = 10


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: it would kill the process before we have closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled in `serve`."""
        yield


async def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, or until a background loop dies (then it raises)."""
    async with open_service(settings) as service:
        server = _Server(_config(settings, create_app(service)))
        loop = asyncio.get_running_loop()

        def stop() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(_forever(run()), name=name) for name, run in service.loops]
            await tasks.create_task(server.serve(), name="http")
            for task in loops:
                task.cancel()
    logger.info("stopped")


async def _forever(work: object) -> None:
    await work  # type: ignore[misc]


def _config(settings: Settings, app: object) -> uvicorn.Config:
    host, port = settings.address
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    if settings.tls_cert_file is not None:
        config.ssl_certfile = str(settings.tls_cert_file)
        config.ssl_keyfile = str(settings.tls_key_file)
        if settings.tls_client_ca_file is not None:
            config.ssl_ca_certs = str(settings.tls_client_ca_file)
            config.ssl_cert_reqs = ssl.CERT_REQUIRED
    return config
