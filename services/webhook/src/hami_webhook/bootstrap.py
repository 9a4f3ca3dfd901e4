"""Composition root: from settings to a serving webhook, closed in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from hamicommon import deviceconfig
from hamicommon.admission.mutation import AdmissionRules, mutate
from hamicommon.cancellation import end
from hamicommon.serving import serving
from hamicommon.vendors.registry import Vendors

from hami_webhook.certificates import ServingCertificate
from hami_webhook.instruments import Instruments
from hami_webhook.routes import create_app, create_probe_app, probe_routes
from hami_webhook.service import Admission, Decide
from hami_webhook.settings import Settings

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class App:
    """The running webhook."""

    port: int
    probe_port: int | None
    draining: bool = False


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[App]:
    """Serves while the block runs; a background task that dies ends the block.

    Raises: InvalidRequest (device configuration, certificate), Unavailable (address taken).
    """
    instruments = Instruments()
    certificate = ServingCertificate(settings.tls_cert_file, settings.tls_key_file, instruments)
    admission = Admission(_decide(settings), instruments, settings.fail_policy)
    app = App(port=0, probe_port=None)

    def hindrances() -> list[str]:
        reasons = ["stopping"] if app.draining else []
        if certificate.expired(datetime.now(UTC)):
            reasons.append(f"the certificate expired at {certificate.not_after.isoformat()}")
        return reasons

    probes = probe_routes(instruments.registry, hindrances)
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        main = create_app(admission, probes, max_body_bytes=settings.max_body_mib * _MIB)
        app.port = await stack.enter_async_context(
            serving(main, settings.http_bind, ssl_context=certificate.context)
        )
        if settings.probe_bind:
            app.probe_port = await stack.enter_async_context(
                serving(create_probe_app(probes), settings.probe_bind)
            )
        watch = group.create_task(certificate.watch(), name="watch-certificate")
        stack.push_async_callback(end, [watch])
        logger.info("serving", extra={"port": app.port, "probe_port": app.probe_port})
        yield app
        app.draining = True
        await asyncio.sleep(settings.drain_s)


def _decide(settings: Settings) -> Decide:
    config = deviceconfig.load(settings.device_config_file)
    for note in config.notes:
        logger.warning("device configuration", extra={"note": note})
    rules = AdmissionRules(
        vendors=Vendors.from_config(
            config,
            enable_ascend=settings.enable_ascend,
            enable_iluvatar=settings.enable_iluvatar,
        ),
        scheduler_name=settings.scheduler_name,
        force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
    )
    return partial(mutate, rules=rules)
