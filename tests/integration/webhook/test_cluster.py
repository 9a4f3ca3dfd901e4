"""The webhook over a real NATS: it learns cards and quotas, and is open for business without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from hami_webhook.bootstrap import WebhookApp, open_app
from hami_webhook.settings import OptionalNats, Settings
from hamicommon import events
from hamicommon.bus.client import Bus, Deliver, Message, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import WEBHOOK_USER
from hamicommon.k8s.types import Json
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings
from hamilocal.servers.certificates import Authority
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats import NatsUser, service_nats_users
from hamilocal.supervisor.ports import free_port
from pydantic import SecretStr

from tests.processes import running
from tests.waiting import PATIENCE_S

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
NODE = "node-1"


def review(limits: Json, uid: str = "r1") -> Json:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    request = {"uid": uid, "operation": "CREATE", "namespace": "team", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.new("test")
    authority.make_serving(
        "webhook", certificate_file=folder / "tls.crt", key_file=folder / "tls.key"
    )
    return folder


@asynccontextmanager
async def webhook(certificate: Path, nats: OptionalNats) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        http_bind="127.0.0.1:0",
        tls_cert_file=certificate / "tls.crt",
        tls_key_file=certificate / "tls.key",
        never_fits="deny",
        nats=nats,
    )
    async with asyncio.timeout(PATIENCE_S), open_app(settings) as app, _client(app) as http:
        yield http


@asynccontextmanager
async def scheduler(settings: NatsSettings) -> AsyncIterator[Bus]:
    """The scheduler's connection, which opens feeds."""
    async with open_bus(settings, "boss", owns_streams=True) as bus:
        serving = asyncio.create_task(bus.serve_feeds("scheduler"))
        try:
            yield bus
        finally:
            await end([serving])


def _client(app: WebhookApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{app.port}", verify=False, timeout=PATIENCE_S
    )


async def review_of(http: httpx.AsyncClient, limits: Json) -> Json:
    answer = await http.post("/webhook", json=review(limits))
    return dict(answer.json()["response"])


async def until(http: httpx.AsyncClient, limits: Json, reason: str) -> Json:
    """Asks until the answer has the reason; the test's own time-out ends it."""
    while True:
        response = await review_of(http, limits)
        if response["auditAnnotations"]["reason"] == reason:
            return response
        await asyncio.sleep(0.05)


async def publish_cluster(bus: Bus, *, used: int = 0) -> None:
    """Publish as scheduler and agent would."""
    now = datetime.now(UTC)
    device = events.InventoryDevice(
        uuid="GPU-1",
        index=0,
        vendor="NVIDIA",
        type="NVIDIA A100",
        slots=10,
        memory_mib=81920,
        core_percent=100,
    )
    inventory = events.Inventory(
        node=NODE, agent_id="a", sequence=1, observed_at=now, devices=(device,)
    )
    quota = events.QuotaNumbers(resource=MEM, limit=10_000, used=used)
    spoken = (
        (events.inventory_subject(NODE), inventory),
        (
            events.ledger_quota_subject("team"),
            events.NamespaceNumbers(namespace="team", taken_at=now, quotas=(quota,)),
        ),
        (
            events.LEDGER_CLUSTER_SUBJECT,
            events.ClusterNumbers(taken_at=now, agent_nodes=1, foreign_vendors=()),
        ),
    )
    for subject, payload in spoken:
        await bus.publish(subject, payload, message_id=f"{subject}/{now.isoformat()}")


async def test_cards_and_quotas_are_learnt_with_the_webhooks_own_rights(
    certificate: Path, tmp_path: Path
) -> None:
    users = [NatsUser(name="boss", password="b"), *service_nats_users(lambda _: "w")]
    plan = nats_server.prepare(tmp_path, port=free_port(), users=users)
    boss = NatsSettings(url=plan.url, user="boss", password=SecretStr("b"))
    mine = OptionalNats(url=plan.url, user=WEBHOOK_USER, password=SecretStr("w"))
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: Message) -> None:
        heard.put_nowait(message.data)

    with running(plan):
        async with scheduler(boss) as bus:
            await publish_cluster(bus)
            async with webhook(certificate, mine) as http:
                denied = await until(http, {GPU: 1, MEM: 90_000}, "over-quota")
                assert "exceeding resource quota: namespace team has" in denied["status"]["message"]
                never = await until(http, {GPU: 2, MEM: 1_000}, "never-fits")
                assert "fits if nvidia.com/gpu <= 1" in never["status"]["message"]
                fits = await review_of(http, {GPU: 1, MEM: 10_000})
                assert fits["allowed"]
                assert fits["auditAnnotations"] == {
                    "reason": "asks-for-cards",
                    "cards": "known",
                    "quotas": "known",
                }

                await publish_cluster(bus, used=1)
                await until(http, {GPU: 1, MEM: 10_000}, "over-quota")

                what = Subscription(
                    stream=events.EVENTS_STREAM,
                    subject=events.ADMISSION_REFUSED_SUBJECT,
                    consumer="test",
                    deliver=Deliver.ALL,
                )
                hearing = asyncio.create_task(bus.consume(what, hear))
                refusal = events.AdmissionRefused.model_validate_json(await heard.get())
                assert (refusal.namespace, refusal.pod_name) == ("team", "p")
                hearing.cancel()
                await asyncio.wait([hearing])


async def test_without_a_bus_pods_are_admitted_and_the_audit_shows_it(certificate: Path) -> None:
    away = OptionalNats(url=f"nats://127.0.0.1:{free_port()}")
    async with webhook(certificate, away) as http:
        response = await review_of(http, {GPU: 1, MEM: 90_000})

    assert response["allowed"]
    unknown = "unknown: the scheduler has not published its statistics"
    assert response["auditAnnotations"] == {
        "reason": "asks-for-cards",
        "cards": unknown,
        "quotas": unknown,
    }


async def test_it_opens_and_closes_again_and_again_with_messages_on_the_way(
    certificate: Path, nats_url: str
) -> None:
    async with scheduler(NatsSettings(url=nats_url)) as bus:
        for used in range(5):
            async with webhook(certificate, OptionalNats(url=nats_url)) as http:
                await publish_cluster(bus, used=used)
                assert (await review_of(http, {GPU: 1, MEM: 1}))["allowed"]
