"""The outbox and its relay, as `hamicommon.ledger.outbox` over the simulated database."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from hamicommon.bus.client import Outgoing

from tests.simulation.cluster.processes import Process
from tests.simulation.stores.bus import BusConnection

Listener = Callable[[str, bytes], Awaitable[None]]
RELAY_POLL_S = 1.0
RELAY_COALESCE_S = 0.025


@dataclass(slots=True)
class OutboxRow:
    """A fact to be announced."""

    id: int
    subject: str
    payload: dict[str, Any]
    published: bool = False
    taken: bool = False


class Outbox:
    """Facts in the order of their commits, and who wants to know of new ones."""

    def __init__(self) -> None:
        self.rows: list[OutboxRow] = []
        self.wakers: dict[int, Callable[[], None]] = {}

    def add(self, subject: str, payload: dict[str, Any]) -> None:
        """A fact of a transaction that is being committed."""
        self.rows.append(OutboxRow(len(self.rows) + 1, subject, payload))
        for wake in self.wakers.values():
            wake()


class SimRelay:
    """A relay like `OutboxRelay`: rows are locked on their way, and come again when it fails."""

    def __init__(self, outbox: Outbox, bus: BusConnection, process: Process) -> None:
        self._outbox, self._bus, self._process = outbox, bus, process
        self.listener: Listener | None = None
        self.published = 0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be new rows."""
        self._woken.set()

    async def run(self) -> None:
        """Relays until cancelled."""
        self._outbox.wakers[id(self)] = self.wake
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RELAY_POLL_S):
                        await self._woken.wait()
                await self._process.hop(RELAY_COALESCE_S)
                self._woken.clear()
                if self._bus.connected:
                    await self._relay()
        finally:
            del self._outbox.wakers[id(self)]

    async def _relay(self) -> None:
        rows = [row for row in self._outbox.rows if not row.published and not row.taken]
        for row in rows:
            row.taken = True
        try:
            messages = [
                Outgoing(
                    subject=row.subject,
                    data=orjson.dumps(row.payload),
                    message_id=f"outbox-{row.id}",
                    headers={},
                )
                for row in rows
            ]
            errors = await self._bus.publish_all(messages)
            done = [row for row, error in zip(rows, errors, strict=True) if error is None]
            for row in done:
                row.published = True
        finally:
            # Row locks end with their transaction, also that of a process that died.
            for row in rows:
                row.taken = False
        self.published += len(done)
        if self.listener is not None:
            for row in done:
                await self.listener(row.subject, orjson.dumps(row.payload))
