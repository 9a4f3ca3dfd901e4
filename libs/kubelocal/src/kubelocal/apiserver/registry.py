"""The parts of a running server, as the HTTP layer sees them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kubelocal.apiserver.admission.chain import AdmissionChain
from kubelocal.apiserver.admission.webhook_client import WebhookClient
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.users import User
from kubelocal.apiserver.verbs.binding import Bindings
from kubelocal.apiserver.verbs.create_update import CreateUpdate
from kubelocal.apiserver.verbs.delete import Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Verbs over one store. `address` is what discovery gives clients (`host:port`)."""

    store: ObjectStore
    writing: CreateUpdate
    deleting: Delete
    binding: Bindings
    tokens: dict[str, User]
    address: str
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """End all watches, so that the server can close."""
        self.stopping.set()
        for history in self.store.histories.values():
            history.wake()


def build(
    store: ObjectStore, client: WebhookClient, tokens: dict[str, User], address: str
) -> Registry:
    """Put the verbs together over an open store."""
    admission = AdmissionChain(store, client)
    return Registry(
        store=store,
        writing=CreateUpdate(store, admission),
        deleting=Delete(store, admission),
        binding=Bindings(store, admission),
        tokens=tokens,
        address=address,
    )
