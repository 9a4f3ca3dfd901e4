"""Node-agents on the bus of `k8s/`: each reaches its own node's subjects, whatever it publishes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import nats
import nats.errors
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_scheduler.bus.auth import Bearer, Logins
from hamicommon import events
from hamicommon.bus.client import Bus, Message, NobodyAnswers
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.logins import ASK_SUBJECT
from hamicommon.bus.permissions import agent_user
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.settings import NatsSettings
from pydantic import SecretStr

from tests.integration.k8s.bus import bus_server
from tests.waiting import PATIENCE_S

AGENTS = "hami-system:hami-node-agent"
ACCOUNT = f"system:serviceaccount:{AGENTS}"
BEARERS = {
    "token-a": Bearer(username=ACCOUNT, node=NodeName("a")),
    "token-b": Bearer(username=ACCOUNT, node=NodeName("b.example")),
    "unbound": Bearer(username=ACCOUNT, node=None),
    "tenant": Bearer(username="system:serviceaccount:default:tenant", node=NodeName("a")),
}
REFUSED = r"(?i)authorization violation"


class Reviews:
    """An API server's knowledge of tokens."""

    async def review(self, token: str) -> Bearer:
        if token not in BEARERS:
            raise InvalidRequest("the token is invalid: it is expired")
        return BEARERS[token]


@dataclass
class Cluster:
    """The bus, with the scheduler on it."""

    url: str
    scheduler: Bus
    folder: Path

    def as_agent(self, token: str) -> NatsSettings:
        file = self.folder / token
        file.write_text(f"{token}\n")
        return NatsSettings(url=self.url, token_file=file)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(tmp_path) as made:
        yield made


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[Cluster]:
    folder.chmod(0o755)
    key = Ed25519PrivateKey.generate()
    with bus_server(folder, key.public_key()) as url:
        settings = NatsSettings(url=url, user="hami-scheduler", password=SecretStr("secret"))
        async with open_bus(settings, "scheduler", owns_streams=True) as scheduler:
            logins = Logins(reviews=Reviews(), agents=AGENTS, key=key)
            serving = asyncio.create_task(scheduler.serve(ASK_SUBJECT, "s", logins.respond))
            yield Cluster(url, scheduler, folder)
            serving.cancel()


async def wait_until_connected(bus: Bus) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not bus.connected_for_s:
            await asyncio.sleep(0.05)


async def test_an_agent_hears_its_grants_asks_for_them_and_is_asked(cluster: Cluster) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(message: Message) -> None:
        heard.put_nowait(message.data)

    async def snapshot(subject: str, _body: bytes) -> events.GrantSnapshot:
        node = subject.rpartition(".")[2]
        return events.GrantSnapshot(node=node, complete=True, taken_at=datetime.now(UTC))

    async def ready(_subject: str, _body: bytes) -> events.Readiness:
        return events.Readiness(node="a", ready=True)

    async with open_bus(cluster.as_agent("token-a"), agent_user("a")) as agent:
        await wait_until_connected(agent)
        tasks = [
            asyncio.create_task(agent.follow([events.grants_subject("a")], take)),
            asyncio.create_task(agent.serve(events.readiness_subject("a"), "", ready)),
            asyncio.create_task(cluster.scheduler.serve("hami.grants.snapshot.*", "s", snapshot)),
        ]
        # As the agent does: the answer came, so the subscription is at the server.
        question = events.GrantSnapshotRequest(node="a")
        reply = await answer_of(agent, events.snapshot_subject("a"), question)
        withdrawn = events.GrantWithdrawn(
            allocation_id="1", pod_uid="1", node="a", token=1, reason="test"
        )
        await cluster.scheduler.publish(events.grants_subject("a"), withdrawn, message_id="1")
        async with asyncio.timeout(PATIENCE_S):
            assert b'"test"' in await heard.get()
        assert events.GrantSnapshot.model_validate_json(reply).node == "a"
        asked = events.ReadinessRequest(node="a")
        answer = await cluster.scheduler.request(events.readiness_subject("a"), asked)
        assert events.Readiness.model_validate_json(answer).ready
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def answer_of(bus: Bus, subject: str, question: events.Payload) -> bytes:
    """Repeat the request until a responder answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await bus.request(subject, question)
            except NobodyAnswers:
                await asyncio.sleep(0.05)


async def test_an_agent_reaches_nothing_of_another_node(cluster: Cluster) -> None:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(exc: Exception) -> None:
        refused.put_nowait(str(exc).lower())

    other = "b.example"
    client = await login(cluster, "token-a", error_cb=on_error, name=agent_user(other))
    try:
        for subject in (
            "_INBOX_agent-b_example.>",
            "_INBOX_hami-scheduler.>",
            events.grants_subject(other),
            events.readiness_subject(other),
            ASK_SUBJECT,
            ">",
        ):
            await client.subscribe(subject)
            await permission_error(refused, subject)
        for subject in (
            f"$JS.API.CONSUMER.CREATE.HAMI_GRANTS.x.{events.grants_subject(other)}",
            # By these the server would send for it, to any subject.
            f"$JS.API.CONSUMER.CREATE.HAMI_GRANTS.agent-a.{events.grants_subject('a')}",
            "$JS.API.CONSUMER.MSG.NEXT.HAMI_GRANTS.agent-a",
            "$JS.API.CONSUMER.INFO.HAMI_GRANTS.agent-a",
            "hami.dead.v1.HAMI_GRANTS.agent-a",
            "$JS.API.STREAM.MSG.GET.HAMI_GRANTS",
            events.snapshot_subject(other),
            events.inventory_subject(other),
            events.reports_subject(other),
            events.usage_subject(other),
        ):
            await client.publish(subject, b"{}")
            await permission_error(refused, subject)
    finally:
        await client.close()


async def connect(cluster: Cluster, **options: object) -> nats.NATS:
    """A login that was answered; on a busy machine NATS gives it up before the scheduler does.

    Raises: nats.errors.Error when it was refused.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            client = nats.NATS()
            try:
                await client.connect([cluster.url], allow_reconnect=False, **options)
            except BaseException as exc:
                # nats-py leaves the socket of a login that came to nothing to its owner.
                await client.close()
                if not isinstance(exc, (nats.errors.Error, OSError)) or is_refusal(exc):
                    raise
            else:
                return client


def is_refusal(exc: Exception) -> bool:
    return "authorization violation" in str(exc).lower()


async def login(cluster: Cluster, token: str, **options: object) -> nats.NATS:
    """Tries until the scheduler answers for logins."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await connect(cluster, token=token, **options)
            except nats.errors.Error as exc:
                if not is_refusal(exc):
                    raise
                await asyncio.sleep(0.2)


async def permission_error(refused: asyncio.Queue[str], subject: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        message = await refused.get()
    assert "permissions violation" in message, message
    assert subject.lower() in message, (subject, message)


@pytest.mark.parametrize("token", ["forged", "unbound", "tenant"])
async def test_a_token_that_is_no_agents_is_refused(cluster: Cluster, token: str) -> None:
    # The answering service is there once a good one is let in.
    await (await login(cluster, "token-b")).close()

    with pytest.raises(nats.errors.Error, match=REFUSED):
        await connect(cluster, token=token)


async def test_without_a_token_or_as_a_service_without_its_password_nobody_comes_in(
    cluster: Cluster,
) -> None:
    await (await login(cluster, "token-b")).close()

    with pytest.raises(nats.errors.Error, match=REFUSED):
        await connect(cluster)
    with pytest.raises(nats.errors.Error, match=REFUSED):
        await connect(cluster, user="hami-scheduler", password="guessed")
