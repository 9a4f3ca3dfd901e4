"""A scheduler replica: the real service of `hami_scheduler.bootstrap`, on simulated wires."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_scheduler.adapters.kubernetes import (
    KubernetesClaimApi,
    KubernetesNodeApi,
    KubernetesPodApi,
    KubernetesTemplateApi,
)
from hami_scheduler.adapters.nats import NatsGrantAnnouncer, NatsNodeWitness
from hami_scheduler.adapters.redis import RedisNodeLock
from hami_scheduler.api.app import Service
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.use_cases import build
from hami_scheduler.bus.ledger_stats import LedgerStats
from hami_scheduler.ledger.quota import quota_amounts
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import PodEvent
from hami_scheduler.settings import Settings
from hamicommon import device_config
from hamicommon.grants.grant import Grant, read_signed
from hamicommon.grants.signing import public_key, sign
from hamicommon.k8s.types import Json
from hamicommon.ledger.model import QuotaAmounts
from hamicommon.settings import NatsSettings, PostgresSettings, RedisSettings
from hamicommon.vendors.registry import Vendors

from tests.simulation.cluster.api_server import ApiServer, Connection
from tests.simulation.cluster.processes import Process, Weather
from tests.simulation.stores.bus import BusConnection
from tests.simulation.stores.hub import Hub
from tests.simulation.stores.ledger import Decisions, Everlasting, SimLedger
from tests.simulation.stores.outbox import SimRelay
from tests.simulation.stores.redis_server import RedisConnection, RedisServer

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
VENDORS = Vendors.from_config(device_config.load(None))
SETTINGS = Settings(
    grant_key_file=Path("unused"),
    postgres=PostgresSettings(dsn="postgresql://simulated"),
    redis=RedisSettings(url="redis://simulated"),
    nats=NatsSettings(url="nats://simulated"),
)
RULES = {vendor.name: vendor.rules for vendor in VENDORS}


def quota_of(containers: Sequence[Any]) -> QuotaAmounts:
    """Return the amounts of slices in quotas."""
    return quota_amounts(containers, VENDORS)


class _Events:
    """Port QueuedEvents; no test reads the events."""

    dropped = 0

    def emit(self, event: PodEvent) -> None:
        """Do nothing."""


class Silent:
    """Stub for limit checks and statistics, which the simulation does not have."""

    async def close_silent(self, *, silent_s: float) -> int:
        """Do nothing."""
        del silent_s
        return 0

    async def read(self) -> LedgerStats:
        """Wait forever."""
        await asyncio.Event().wait()
        raise AssertionError


class Replica:
    """One process of the scheduler."""

    def __init__(
        self,
        name: str,
        *,
        seed: str,
        weather: Weather,
        ledger: SimLedger,
        redis: RedisServer,
        hub: Hub,
        api: ApiServer,
    ) -> None:
        self.process = Process(name, seed, weather)
        self._hub = hub
        self._bus = BusConnection(hub, self.process, weather, seed)
        self.service = self._service(seed, weather, ledger, redis, api)
        for _loop_name, loop in self.service.loops:
            self.process.start(cast(Any, loop()))

    def _service(
        self,
        seed: str,
        weather: Weather,
        ledger: SimLedger,
        redis: RedisServer,
        api: ApiServer,
    ) -> Service:
        process, bus = self.process, self._bus
        connection = Connection(api, process, weather, seed)
        store = process.wire(ledger, "ledger")

        def sign_grant(grant: Grant) -> str:
            return sign(grant, KEY)

        lock = RedisNodeLock(cast(Any, RedisConnection(redis, process)), lock_s=SETTINGS.lock_s)
        wired = SimpleNamespace(
            store=store,
            inventory=store,
            counters=store,
            row_repairs=store,
            quotas=store,
            journal=store,
            retention=Everlasting(),
            decisions=Decisions(),
            queries=store,
            ping=store.ping,
            relay=SimRelay(ledger.outbox, bus, process),
            lock=lock,
            pods=KubernetesPodApi(cast(Any, connection)),
            nodes=KubernetesNodeApi(cast(Any, connection)),
            claims=KubernetesClaimApi(cast(Any, connection)),
            templates=KubernetesTemplateApi(cast(Any, connection)),
            events=_Events(),
            background=BackgroundQueue(),
            grants=NatsGrantAnnouncer(cast(Any, bus)),
            witness=NatsNodeWitness(cast(Any, bus)),
            sign=sign_grant,
            read_signed=lambda text: read_signed(text, public_key(KEY)),
            bus=bus,
            api=connection,
            limits=Silent(),
            rooms=Silent(),
            scaling=Silent(),
            placeholders=Silent(),
            ledger_stats=Silent(),
            access=None,
            calls=None,
            logins=None,
        )
        return build(SETTINGS, VENDORS, SchedulerInstruments(), cast(Connections, wired))

    async def kill(self) -> None:
        """Kill it as SIGKILL does."""
        self._hub.leave(self._bus)
        await self.process.kill()

    async def filter(self, pod: Json, names: Sequence[str]) -> Json:
        """POST /filter."""
        return await self._call_verb("filter", {"Pod": pod, "NodeNames": list(names)})

    async def bind(self, pod: Json, node: str) -> str:
        """POST /bind."""
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        return str((await self._call_verb("bind", body))["Error"])

    async def _call_verb(self, verb: str, body: Json) -> Json:
        asked = orjson.dumps(body)

        async def serve_verb() -> bytes:
            answer, record = await self.service.verbs.answer(verb, asked)
            record()
            return answer

        return cast(Json, orjson.loads(await self._serve(serve_verb())))

    async def _serve(self, work: Any) -> Any:
        """Run the work to its end without the caller; raise an error if the process dies.

        Raises: ConnectionError.
        """
        task = self.process.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectionError(f"{self.process.name} died") from None
            raise
