"""The parts of a running server, as the HTTP layer sees them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kubelocal.apiserver.admission.chain import Admission
from kubelocal.apiserver.admission.webhook_client import WebhookClient
from kubelocal.apiserver.storage.store import Store
from kubelocal.apiserver.users import User
from kubelocal.apiserver.verbs.binding import Binding
from kubelocal.apiserver.verbs.create_update import Writing
from kubelocal.apiserver.verbs.delete import Deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Verbs over one store. `address` is what discovery tells clients (`host:port`)."""

    store: Store
    writing: Writing
    deleting: Deleting
    binding: Binding
    tokens: dict[str, User]
    address: str
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """End all watches, so that the server can close."""
        self.stopping.set()
        for history in self.store.histories.values():
            history.wake()


def build(store: Store, client: WebhookClient, tokens: dict[str, User], address: str) -> Registry:
    """Put the verbs together over an open store."""
    admission = Admission(store, client)
    return Registry(
        store=store,
        writing=Writing(store, admission),
        deleting=Deleting(store, admission),
        binding=Binding(store, admission),
        tokens=tokens,
        address=address,
    )
