"""Wiring: the open store, the objects that every cluster has, the running controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hamicommon.cancellation import end
from hamicommon.errors import InvalidRequest

from hamictl.apiserver import registry as registries
from hamictl.apiserver.admission import priority_class_bodies
from hamictl.apiserver.calls import Caller, Target
from hamictl.apiserver.controllers import Controllers, Pace
from hamictl.apiserver.errors import ApiError
from hamictl.apiserver.journal import Journal
from hamictl.apiserver.registry import Registry
from hamictl.apiserver.resources import NAMESPACES, PRIORITY_CLASSES
from hamictl.apiserver.settings import Settings
from hamictl.apiserver.store import Store
from hamictl.apiserver.users import CONTROLLER, read_tokens
from hamictl.apiserver.webhook_client import WebhookClient

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


@asynccontextmanager
async def open_registry(settings: Settings) -> AsyncIterator[Registry]:
    """A running server without its HTTP side."""
    journal = Journal(settings.data)
    store = Store(journal, compact_every=settings.compact_every)
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
            await registry.writing.create(Target(resource=resource), caller, body)
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
