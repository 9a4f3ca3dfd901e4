"""Wiring: the open store, the objects that every cluster has, the running controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hamicommon.errors import InvalidRequest
from hamicommon.process.shutdown import end

from kubelocal.apiserver import registry as registries
from kubelocal.apiserver.admission.chain import priority_class_bodies
from kubelocal.apiserver.admission.webhook_client import WebhookClient
from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.controllers import Controllers, Pace
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.registry import Registry
from kubelocal.apiserver.schema.resources import NAMESPACES, PRIORITY_CLASSES
from kubelocal.apiserver.settings import Settings
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.users import CONTROLLER, read_tokens

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@asynccontextmanager
async def open_registry(settings: Settings) -> AsyncIterator[Registry]:
    """A running server without its HTTP side."""
    journal = Journal(settings.data)
    store = ObjectStore(journal, compact_every=settings.compact_every)
    client = WebhookClient(_service_map(settings.service_map))
    tokens = read_tokens(settings.token_file)
    await store.open()
    registry = registries.build(store, client, tokens, f"{settings.host}:{settings.port}")
    pace = Pace(lost_node_s=settings.lost_node_s, event_life_s=settings.event_life_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(store.write_forever(), name="store writer")]
            await _make_first_objects(registry)
            controllers = Controllers(store, registry.deleting, pace)
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
