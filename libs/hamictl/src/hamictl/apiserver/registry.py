"""The parts of a running server, as the HTTP layer sees them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hamictl.apiserver.admission import Admission
from hamictl.apiserver.binding import Binding
from hamictl.apiserver.deleting import Deleting
from hamictl.apiserver.store import Store
from hamictl.apiserver.users import User
from hamictl.apiserver.webhook_client import WebhookClient
from hamictl.apiserver.writing import Writing


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
