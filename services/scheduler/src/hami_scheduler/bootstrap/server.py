"""Run the HTTP server and the background loops; if one fails, all end."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from hamicommon.process import http_server
from hamicommon.process.serving_certificate import ServingCertificate
from hamicommon.process.shutdown import end, until_stopped
from hamicommon.telemetry.moments import ShownCertificate

from hami_scheduler.api.app import Service, create_app, create_operator_app, create_probe_app
from hami_scheduler.bootstrap.loops import running
from hami_scheduler.bootstrap.use_cases import open_service
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.settings import Settings

logger = logging.getLogger(__name__)

# A replica holds every pod of the cluster as JSON: a full collection walks some 10^6 objects that
# are all still needed. Ours have hardly any cycles, so it is enough to look a hundred times less
# often than CPython's defaults (700, 10, 10) do.
GC_THRESHOLDS = (20_000, 50, 100)
READY_POLL_S = 1.0


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; raises if a background loop fails."""
    gc.set_threshold(*GC_THRESHOLDS)
    async with open_service(settings) as service:
        certificate = serving_certificate(settings, service.instruments)
        loops = [] if certificate is None else [("watch-certificate", certificate.watch)]
        async with (
            running([*service.loops, *loops]),
            other_ports(settings, service, certificate),
            http_server.serving(
                create_app(service, probes=not settings.probe_bind), settings.http_bind
            ) as port,
        ):
            logger.info("Serving", extra={"port": port})
            freezing = asyncio.create_task(_freeze_when_ready(service))
            try:
                await until_stopped()
            finally:
                await end([freezing])
    logger.info("Stopped")


@asynccontextmanager
async def other_ports(
    settings: Settings, service: Service, certificate: ServingCertificate | None
) -> AsyncIterator[dict[str, int]]:
    """Serve operators and probes during the block, if the settings name their addresses.

    `certificate`: the operators'; the caller watches its files.

    Yields the ports, by `operator` and `probe`. Raises: Unavailable when an address is taken,
    InvalidRequest when it is none.
    """
    ports: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        if service.access is not None:
            app = create_operator_app(service, service.access)
            assert certificate is not None  # the settings check that there is one
            ports["operator"] = await stack.enter_async_context(
                http_server.serving(app, settings.operator_bind, ssl_context=certificate.context)
            )
        if settings.probe_bind:
            ports["probe"] = await stack.enter_async_context(
                http_server.serving(create_probe_app(service), settings.probe_bind)
            )
        yield ports


async def _freeze_when_ready(service: Service) -> None:
    """Exempt objects loaded at the start from garbage collection, once the service is ready."""
    while True:
        if not await service.readiness():
            gc.freeze()
            return
        await asyncio.sleep(READY_POLL_S)


def serving_certificate(
    settings: Settings, instruments: SchedulerInstruments
) -> ServingCertificate | None:
    """Return the certificate of the operators' port; None if the settings name none.

    Raises: InvalidRequest when the files are not usable.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServingCertificate(
        settings.tls_cert_file,
        settings.tls_key_file,
        on_reload=lambda result: instruments.certificate_reloads.labels(result).inc(),
        on_expiry=lambda end: instruments.certificates.show(ShownCertificate.SERVING, end),
    )
