"""Open and close a running metrics service from its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter
from hamicommon import telemetry
from hamicommon.access.checks import Access
from hamicommon.access.reviews import KubernetesAccessReviews, scrape_access
from hamicommon.bus.client import Bus, Message
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.deliveries import REFUSALS, USAGE
from hamicommon.bus.permissions import METRICS_USER
from hamicommon.k8s.client import open_kube_api
from hamicommon.ledger.database import open_database
from hamicommon.ledger.pool import open_pool
from hamicommon.ledger.showback import PriceList, read_prices
from hamicommon.process.http_server import serving
from hamicommon.process.periodic import every
from hamicommon.process.shutdown import end
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_metrics.adapters.ledger import PostgresLedger
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.adapters.refusals import PostgresRefusalStore
from hami_metrics.adapters.server_certificates import (
    ServerCertificate,
    nats_certificate,
    postgres_certificate,
)
from hami_metrics.exposition.families import LedgerCollector, build_info
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.pages.entry import Pages, PagesNeeds, check_bind
from hami_metrics.ports import UsageStore
from hami_metrics.questions.asking import Asking, LocalViewers, Seal, TokenViewers, Viewers
from hami_metrics.questions.routes import bill_routes, question_routes
from hami_metrics.refusals import RefusalHistory
from hami_metrics.routes import create_app
from hami_metrics.service import LedgerFigures, UsageHistory, UsageRetention, keep_days
from hami_metrics.settings import Settings

logger = logging.getLogger(__name__)

# Partitions are created days ahead; a dropped one is created again after this time.
KEEP_DAYS_INTERVAL_S = 600.0
# One hour ends per hour; the other runs include late usage.
HOURS_INTERVAL_S = 900.0
# A server takes a new certificate at its restart; a check costs a handshake.
CERTIFICATE_INTERVAL_S = 60.0
RETRY_S = 5.0
PAGES_CONNECTIONS = 4
"""Number of connections to Postgres for pages, separate from those for reports."""


@dataclass(slots=True, kw_only=True)
class MetricsApp:
    """Running metrics service."""

    port: int
    view: LedgerFigures
    history: UsageHistory
    instruments: MetricsInstruments
    pages: Pages | None = None
    pages_port: int = 0
    draining: bool = False


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[MetricsApp]:
    """Run the service inside `async with`; a background task that fails ends the block.

    Postgres and NATS may be away at the start and at any time. Raises: Unavailable when the
    address to listen on is taken, InvalidRequest for pages that all of a network could read.
    """
    if settings.pages_bind:
        check_bind(
            settings.pages_bind,
            settings.pages_identity,
            published_locally=settings.published_locally,
        )
    instruments = MetricsInstruments()
    instruments.registry.set_target_info(telemetry.target_info("hami-metrics", settings.telemetry))
    async with (
        open_pool(settings.postgres, "hami-metrics") as pool,
        open_bus(settings.nats, METRICS_USER) as bus,
        # Inside, so that every loop has ended before its backend is closed.
        asyncio.TaskGroup() as group,
        AsyncExitStack() as stack,
    ):
        store = PostgresUsageStore(pool)
        view = LedgerFigures(PostgresLedger(pool), _now, stale_s=settings.snapshot_stale_s)
        history = UsageHistory(store, instruments, _now, grace_s=settings.rollup_grace_s)
        app = MetricsApp(port=0, view=view, history=history, instruments=instruments)
        instruments.watch_state(lambda: view.age_s, lambda: bus.connected)
        instruments.registry.register(
            LedgerCollector(view.newest, _now, older_names=settings.legacy_metrics)
        )
        instruments.registry.register(_BuildInfo())
        refusals = RefusalHistory(PostgresRefusalStore(pool), instruments)
        for loop in _loops(settings, store, view, history, refusals, bus, instruments):
            stack.push_async_callback(end, [group.create_task(loop)])

        def not_ready_reasons() -> list[str]:
            return ["stopping"] if app.draining else view.not_ready_reasons()

        access = await _scrape_access(settings, stack)
        questions = await _questions(settings, stack)
        api = create_app(instruments.registry, not_ready_reasons, access, questions)
        app.port = await stack.enter_async_context(serving(api, settings.http_bind))
        logger.info("Serving", extra={"port": app.port})
        if settings.pages_bind:
            await _serve_pages(settings, app, stack, lambda: bus.connected)
        yield app
        app.draining = True
        await asyncio.sleep(settings.drain_s)


async def _scrape_access(settings: Settings, stack: AsyncExitStack) -> Access | None:
    if not settings.scrape_tokens:
        return None
    kubernetes = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
    return scrape_access(kubernetes, audience=settings.scrape_audience)


async def _questions(settings: Settings, stack: AsyncExitStack) -> list[APIRouter]:
    """Return the questions' service with separate connections, so that reports need not wait."""
    asked = settings.postgres
    if settings.questions_dsn.get_secret_value():
        asked = asked.model_copy(update={"dsn": settings.questions_dsn})
    postgres = asked.model_copy(update={"pool_max": settings.question_connections})
    ledger = await stack.enter_async_context(
        open_database(postgres, application="hami-metrics-questions")
    )
    viewers: Viewers = LocalViewers(published=settings.published_locally)
    if settings.api_tokens:
        kubernetes = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
        reviews = KubernetesAccessReviews(kubernetes, audience=settings.api_audience)
        viewers = TokenViewers(Access(reviews))
    seal = Seal(settings.postgres.dsn.get_secret_value())
    asking = Asking(ledger, viewers, seal, settings.show_owners)
    prices = _prices(settings)
    cluster_name = settings.telemetry.cluster_name
    return [question_routes(asking, viewers, cluster_name), bill_routes(asking, viewers, prices)]


def _prices(settings: Settings) -> PriceList | None:
    """Read the price list. Raises: InvalidRequest when the file is not one."""
    return None if settings.price_list is None else read_prices(settings.price_list)


async def _serve_pages(
    settings: Settings,
    app: MetricsApp,
    stack: AsyncExitStack,
    events_connected: Callable[[], bool],
) -> None:
    """Serve the pages on a separate port, with separate connections to Postgres."""
    reviews = None
    if settings.pages_identity != "none":
        kubernetes = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
        reviews = KubernetesAccessReviews(kubernetes, audience=settings.pages_audience)
    postgres = settings.postgres.model_copy(update={"pool_max": PAGES_CONNECTIONS})
    ledger = await stack.enter_async_context(
        open_database(postgres, application="hami-metrics-pages")
    )
    app.pages = Pages(
        PagesNeeds(
            ledger=ledger,
            reviews=reviews,
            proxy=settings.pages_identity == "proxy",
            groups_header=settings.pages_groups_header,
            show=settings.show_owners,
            secret=postgres.dsn.get_secret_value(),
            cluster_name=settings.telemetry.cluster_name,
            clock=_now,
            bulkhead=app.instruments.bulkhead,
            events_connected=events_connected,
            prices=_prices(settings),
            traces=settings.pages_traces,
            trace_url=settings.pages_trace_url,
        )
    )
    app.pages_port = await stack.enter_async_context(serving(app.pages, settings.pages_bind))
    # Before the server ends, which waits for its answers: a stream is one that never ends.
    stack.push_async_callback(app.pages.close)
    logger.info(
        "Serving pages",
        extra={"bind": settings.pages_bind, "port": app.pages_port}
        | {"identity": settings.pages_identity},
    )


def _loops(
    settings: Settings,
    store: UsageStore,
    view: LedgerFigures,
    history: UsageHistory,
    refusals: RefusalHistory,
    bus: Bus,
    instruments: MetricsInstruments,
) -> list[Coroutine[object, object, None]]:
    """Return the background tasks."""
    retention = UsageRetention(
        raw_days=settings.raw_retention_days,
        fine_days=settings.fine_retention_days,
        coarse_days=settings.coarse_retention_days,
        day_days=settings.day_retention_days,
    )

    async def keep() -> None:
        dropped = await keep_days(store, retention, now=_now())
        logger.info(
            "Removed samples that are past their retention",
            extra={"dropped": [day.isoformat() for day in dropped]},
        )
        await refusals.keep(settings.refusal_retention_days, now=_now())

    async def look_at(certificate: ServerCertificate) -> None:
        instruments.show_expiry(certificate.server, await certificate.not_after())

    async def sum_up_namespaces() -> None:
        hours = await store.sum_up_namespaces(_now())
        logger.info("Computed the usage of each namespace", extra={"hours": hours})

    async def sum_up_capacity() -> None:
        hours = await store.sum_up_capacity(_now())
        logger.info("Summed up capacity", extra={"hours": hours})

    rounds: list[tuple[str, Callable[[], Awaitable[object]], float]] = [
        ("read the ledger", view.refresh, settings.snapshot_interval_s),
        ("sum up usage", history.sum_up, settings.rollup_interval_s),
        ("keep days", keep, KEEP_DAYS_INTERVAL_S),
        ("sum up namespaces", sum_up_namespaces, HOURS_INTERVAL_S),
        ("sum up capacity", sum_up_capacity, HOURS_INTERVAL_S),
        *(
            (f"certificate of {each.server}", partial(look_at, each), CERTIFICATE_INTERVAL_S)
            for each in (postgres_certificate(settings.postgres), nats_certificate(settings.nats))
        ),
    ]
    return [
        *(
            every(interval_s, one, name=name, retry_s=RETRY_S, bulkhead=instruments.bulkhead)
            for name, one, interval_s in rounds
        ),
        bus.consume_all(USAGE, history.ingest),
        _ingest_refusals(bus, refusals),
    ]


class _BuildInfo(Collector):
    def collect(self) -> Iterator[Metric]:
        yield build_info(version=version("hami-metrics"), revision="unknown")


def _now() -> datetime:
    return datetime.now(UTC)


async def _ingest_refusals(bus: Bus, refusals: RefusalHistory) -> None:
    async def handle(message: Message) -> None:
        await refusals.ingest(message.data)

    await bus.consume(REFUSALS, handle)
