"""Open and close a serving webhook from its settings."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon import device_config, telemetry
from hamicommon.admission.cache import AdmissionCache
from hamicommon.admission.mistakes.quotas import judge_quota
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import AdmissionRules, Knowledge
from hamicommon.bus.connecting import open_bus
from hamicommon.process.http_server import serving
from hamicommon.process.serving_certificate import ServingCertificate
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings
from hamicommon.vendors.registry import Vendors

from hami_webhook.cluster_feed import ClusterFollower
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.refusals import RefusalPublisher
from hami_webhook.room import RoomThread
from hami_webhook.routes import create_app, create_probe_app, probe_routes
from hami_webhook.service import ReviewService
from hami_webhook.settings import Settings

logger = logging.getLogger(__name__)

NAME = "hami-webhook"
_MIB = 1024 * 1024
_NO_BUS = "this webhook has no bus (HAMI_NATS_URL is not set)"
_NOT_FOLLOWED = Knowledge(cards_unknown=_NO_BUS, quotas_unknown=_NO_BUS)


@dataclass(slots=True, kw_only=True)
class WebhookApp:
    """Running webhook."""

    port: int
    probe_port: int | None
    draining: bool = False


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[WebhookApp]:
    """Serve while the block runs; a background task that fails ends the block.

    Raises: InvalidRequest (device configuration, certificate), Unavailable (address taken).
    """
    instruments = WebhookInstruments()
    instruments.registry.set_target_info(telemetry.target_info("hami-webhook", settings.telemetry))
    certificate = ServingCertificate(
        settings.tls_cert_file,
        settings.tls_key_file,
        on_reload=instruments.count_reload,
        on_expiry=instruments.show_expiry,
    )
    rules = _rules(settings)
    cards_thread = RoomThread()
    follower = ClusterFollower(rules.vendors, _now, cards_thread)
    refusals = RefusalPublisher(instruments)
    bus_wanted = bool(settings.nats.url)
    admission = ReviewService(
        AdmissionCache(rules, cards_thread.ask),
        instruments,
        settings.fail_policy,
        decide_quota=lambda quota, before: judge_quota(quota, before, rules.vendors),
        knowledge=follower.knowledge if bus_wanted else lambda: _NOT_FOLLOWED,
        announce=refusals.take if bus_wanted else lambda refusal: None,
    )
    app = WebhookApp(port=0, probe_port=None)

    def not_ready_reasons() -> list[str]:
        reasons = ["stopping"] if app.draining else []
        if certificate.is_expired(_now()):
            reasons.append(f"the certificate expired at {certificate.not_after.isoformat()}")
        return reasons

    probes = probe_routes(instruments.registry, not_ready_reasons)
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        stack.callback(cards_thread.close)
        main = create_app(admission, probes, max_body_bytes=settings.max_body_mib * _MIB)
        app.port = await stack.enter_async_context(
            serving(main, settings.http_bind, ssl_context=certificate.context)
        )
        if settings.probe_bind:
            app.probe_port = await stack.enter_async_context(
                serving(create_probe_app(probes), settings.probe_bind)
            )
        loops = [group.create_task(certificate.watch(), name="watch-certificate")]
        if bus_wanted:
            over_bus = _follow_and_publish(settings.nats, follower, refusals)
            loops.append(group.create_task(over_bus, name="bus"))
        stack.push_async_callback(end, loops)
        # A full collection would walk all that was imported, some 30 ms in the middle of reviews.
        gc.collect()
        gc.freeze()
        logger.info("Serving", extra={"port": app.port, "probe_port": app.probe_port})
        yield app
        app.draining = True
        await asyncio.sleep(settings.drain_s)


async def _follow_and_publish(
    settings: NatsSettings, follower: ClusterFollower, refusals: RefusalPublisher
) -> None:
    """Follow and publish over the bus until cancelled; reviews do not wait for it."""
    async with open_bus(settings, NAME) as bus:
        loops = [
            asyncio.create_task(follower.follow_inventories(bus), name="inventories"),
            asyncio.create_task(follower.follow_numbers(bus), name="ledger-numbers"),
            asyncio.create_task(refusals.run(bus), name="publish-refusals"),
        ]
        try:
            ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
            for loop in ended:
                loop.result()
        finally:
            await end(loops)


def _now() -> datetime:
    return datetime.now(UTC)


def _rules(settings: Settings) -> AdmissionRules:
    config = device_config.load(settings.device_config_file)
    for note in config.notes:
        logger.warning("Checked the device configuration", extra={"note": note})
    return AdmissionRules(
        vendors=Vendors.from_config(
            config,
            enable_ascend=settings.enable_ascend,
            enable_iluvatar=settings.enable_iluvatar,
        ),
        scheduler_name=settings.scheduler_name,
        force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
        never_fits=settings.never_fits,
        tampering=TamperingPolicy.of(settings.admission),
        claims=settings.dra == "on",
        marks_slices=settings.mark_slices == "on",
    )
