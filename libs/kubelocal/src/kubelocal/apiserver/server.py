"""Process of the API server: settings, store, controllers, and uvicorn with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from hamicommon.errors import InvalidRequest
from hamicommon.process.shutdown import end
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from kubelocal.apiserver.admission.chain import AdmissionChain, priority_class_bodies
from kubelocal.apiserver.admission.review import WebhookClient
from kubelocal.apiserver.calls import CONTROLLER, ApiTarget, Caller, read_tokens
from kubelocal.apiserver.controllers import Controllers, Intervals
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.http import Registry, build_app
from kubelocal.apiserver.schema.resources import NAMESPACES, PRIORITY_CLASSES
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.verbs.create_update import CreateUpdate
from kubelocal.apiserver.verbs.delete import Bindings, Delete

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
# Watches end immediately on a signal; this is for requests that wait for a webhook.
_GRACE_S = 3
# Idle connections of clients are kept longer than any of them waits between two calls.
_KEEP_ALIVE_S = 120


class Settings(BaseSettings):
    """Settings of the process; flags are the field names with hyphens: `--tls-cert FILE`."""

    model_config = SettingsConfigDict(
        env_prefix="HAMI_APISERVER_",
        cli_kebab_case=True,
        cli_prog_name="python -m kubelocal.apiserver",
    )

    data: Path = Field(description="folder of the object store; made if it does not exist")
    host: str = Field(default="127.0.0.1", description="address to listen on (loopback)")
    port: int = Field(ge=0, le=65535, description="port to listen on")
    tls_cert: Path = Field(description="serving certificate, PEM")
    tls_key: Path = Field(description="its private key, PEM")
    token_file: Path = Field(description='lines of token,user,uid,"group1,group2"')
    service_map: list[str] = Field(
        default_factory=list,
        description="NAMESPACE/NAME[:PORT]=HOST:PORT of a webhook's service; may be repeated",
    )
    lost_node_s: float = Field(
        default=20.0, ge=0, description="seconds after which pods of a deleted node are removed"
    )
    event_life_s: float = Field(default=3600.0, gt=0, description="seconds that events are kept")
    compact_every: int = Field(
        default=0,
        ge=0,
        description="for tests: forget the watch history every so many writes (0: never)",
    )


@asynccontextmanager
async def open_registry(settings: Settings) -> AsyncIterator[Registry]:
    """Yield a running registry without an HTTP server."""
    journal = Journal(settings.data)
    store = ObjectStore(journal, compact_every=settings.compact_every)
    client = WebhookClient(_service_map(settings.service_map))
    tokens = read_tokens(settings.token_file)
    await store.open()
    admission = AdmissionChain(store, client)
    registry = Registry(
        store=store,
        writing=CreateUpdate(store, admission),
        deleting=Delete(store),
        binding=Bindings(store),
        tokens=tokens,
    )
    intervals = Intervals(lost_node_s=settings.lost_node_s, event_life_s=settings.event_life_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(store.write_forever(), name="store writer")]
            await _make_first_objects(registry)
            controllers = Controllers(store, registry.deleting, intervals)
            running.append(tasks.create_task(controllers.run_forever(), name="controllers"))
            try:
                yield registry
            finally:
                await end(running)
    finally:
        await client.close()
        await journal.close()


async def _make_first_objects(registry: Registry) -> None:
    caller = Caller(user=CONTROLLER)
    wanted = [(NAMESPACES, {"metadata": {"name": name}}) for name in _NAMESPACES]
    wanted += [(PRIORITY_CLASSES, body) for body in priority_class_bodies()]
    for resource, body in wanted:
        try:
            await registry.writing.create(ApiTarget(resource=resource), caller, body)
        except ApiError as error:
            if error.code != 409:
                raise


def _service_map(pairs: list[str]) -> dict[str, str]:
    services: dict[str, str] = {}
    for pair in pairs:
        name, equals, address = pair.partition("=")
        if not equals or "/" not in name or ":" not in address:
            raise InvalidRequest(
                f"--service-map {pair!r} is not of the form NAMESPACE/NAME[:PORT]=HOST:PORT"
            )
        services[name] = address
    return services


class _Server(uvicorn.Server):
    """uvicorn that does not wait for open watches when it ends."""

    def __init__(self, config: uvicorn.Config, registry: Registry) -> None:
        super().__init__(config)
        self._registry = registry

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._registry.stop()
        super().handle_exit(sig, frame)


async def serve(settings: Settings) -> None:
    """Serve until a signal. Raises: OSError if files or the port can't be opened."""
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
