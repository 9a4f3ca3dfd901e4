"""A ledger, a view of it and the early reservations between them, for their cases."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hami_scheduler.ledger.reservations.early import CALM_S, EarlyReservations
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.model import BindingClaim, Change, Draft, ReservationWrite

from tests.unit.scheduler.readable_ledger import ReadableLedger

NODE, CARD = NodeName("n"), GpuUuid("GPU-0")


class Ledger(ReadableLedger):
    """Writes when it is let, and notes what came together."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[Sequence[ReservationWrite]] = []
        self.away = False
        self.add_card(
            NODE,
            GpuDevice(
                uuid=CARD,
                index=0,
                vendor="NVIDIA",
                type="A100",
                slots=10,
                memory_mib=1000,
                core_percent=100,
            ),
        )

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> list[Change | HamiError]:
        self.batches.append(writes)
        await self.open.wait()
        if self.away:
            raise Unavailable("Postgres is not available")
        return await super().reserve_all(writes)


@dataclass
class World:
    ledger: Ledger
    view: LedgerSnapshotCache
    early: EarlyReservations
    instruments: SchedulerInstruments
    now: list[float]
    broken: list[str] = field(default_factory=list)
    freed: list[None] = field(default_factory=list)
    quotas: set[str] = field(default_factory=set)
    agents: set[str] = field(default_factory=lambda: {NODE})

    def put(self, pod: str, **changes: Any) -> Draft:
        made = draft(pod, **changes)
        assert self.early.fits(made)
        self.early.put(made, lambda error: self.broken.append(f"{pod}: {error}"))
        return made

    @property
    def used(self) -> tuple[int, int, int]:
        """As the placement engine sees the card."""
        [state] = self.view.cluster.cards(NODE)
        usage = state.usage
        return usage.used_slots, usage.used_memory_mib, usage.used_core_percent


def draft(pod: str, memory_mib: int = 100, cores: int = 10, **changes: Any) -> Draft:
    share = DeviceShare(uuid=CARD, vendor="NVIDIA", memory_mib=memory_mib, core_percent=cores)
    grant = ContainerGrant(index=0, name="main", role="app", shares=(share,))
    values: dict[str, Any] = {
        "allocation_id": AllocationId(str(uuid.uuid4())),
        "pod_uid": PodUid(pod),
        "namespace": "team",
        "pod_name": pod,
        "placement": Placement(node=NODE, containers=(grant,)),
        "lease_s": 60.0,
        "actor": "scheduler",
        **changes,
    }
    return Draft(**values)


def claim(pod: str, node: NodeName = NODE) -> BindingClaim:
    return BindingClaim(pod_uid=PodUid(pod), node=node, actor="scheduler", lease_s=30)


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[World]:
    ledger, instruments, now = Ledger(), SchedulerInstruments(), [0.0]
    view = LedgerSnapshotCache(ledger)
    await view.refresh()
    worlds: list[World] = []
    early = EarlyReservations(
        ledger,
        view,
        rules={},
        has_quota=lambda namespace: namespace in worlds[0].quotas,
        has_agent=lambda node: node in worlds[0].agents,
        on_freed=lambda: worlds[0].freed.append(None),
        instruments=instruments,
        clock=lambda: now[0],
        **options,
    )
    now[0] = CALM_S
    worlds.append(World(ledger, view, early, instruments, now))
    running = asyncio.create_task(early.run())
    try:
        yield worlds[0]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def begun(world: World, batches: int) -> None:
    """Until so many batches are on their way."""
    async with asyncio.timeout(10):
        while len(world.ledger.batches) < batches:
            # One turn of the event loop, which takes no time: the writer has its own.
            await asyncio.sleep(0)
