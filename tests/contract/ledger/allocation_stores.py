"""The stores that keep an AllocationStore's promises, and requests to them: test data."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.ports.ledger import AgentInventory, AllocationStore
from hamicommon.domain.allocations import (
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Placement,
    footprints,
)
from hamicommon.domain.devices import DeviceUsage, GpuDevice, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.model import Draft, StateStep
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import STANDARD_ORDER, VendorRules
from hamicommon.settings import PostgresSettings

from tests.fakes.ledger import FakeLedger
from tests.simulation.stores.ledger import SimLedger

S = AllocationState
NODE, OTHER = NodeName("node-a"), NodeName("node-b")
MEMORY = "nvidia.com/gpumem"


def card(name: str, **changes: Any) -> GpuDevice:
    device = GpuDevice(
        uuid=GpuUuid(f"GPU-{name}"),
        index=0,
        vendor="NVIDIA",
        type="NVIDIA A100",
        slots=3,
        memory_mib=1000,
        core_percent=100,
    )
    return replace(device, **changes)


def container(
    *shares: tuple[str, int, int], index: int = 0, name: str = "main", role: Any = "app"
) -> ContainerGrant:
    return ContainerGrant(
        index=index,
        name=name,
        role=role,
        shares=tuple(
            DeviceShare(
                uuid=GpuUuid(f"GPU-{uuid}"), vendor="NVIDIA", memory_mib=memory, core_percent=core
            )
            for uuid, memory, core in shares
        ),
    )


def instance(name: str, start: int, size: int, **changes: Any) -> DeviceShare:
    """A MIG instance of the card."""
    share = DeviceShare(
        uuid=GpuUuid(f"GPU-{name}"),
        vendor="NVIDIA",
        memory_mib=100,
        core_percent=10,
        detail={"profile": "1g.10gb", "placement": {"start": start, "size": size}},
    )
    return replace(share, **changes)


def holding(*shares: DeviceShare, index: int = 0, role: Any = "app") -> ContainerGrant:
    return ContainerGrant(index=index, name=f"c{index}", role=role, shares=shares)


def draft(pod: str, *containers: ContainerGrant, node: NodeName = NODE, **changes: Any) -> Draft:
    made = Draft(
        allocation_id=AllocationId(str(uuid.uuid4())),
        pod_uid=PodUid(pod),
        namespace="team",
        pod_name=f"pod-{pod}",
        placement=Placement(node=node, containers=containers),
        lease_s=60,
    )
    return replace(made, **changes)


def quota_of(containers: Any) -> dict[str, int]:
    return {MEMORY: sum(card.memory_mib for card in footprints(containers))}


LOOSE = tuple(
    rule
    for rule in STANDARD_ORDER
    if rule not in (Rule.CORDONED, Rule.EXCLUSIVE, Rule.CORES_EXHAUSTED)
)
RULES = {"loose": VendorRules(order=LOOSE), "exact": VendorRules(exact=True)}


@dataclass
class Harness:
    """A store and the other needs of the cases."""

    store: AllocationStore
    ledger: AllocationStore
    fake: FakeLedger | None = None
    database: Database | None = None
    inventory: PostgresInventory | SimLedger | None = None
    _cards: dict[NodeName, list[GpuDevice]] = field(default_factory=dict)
    _sequence: int = 0

    async def add(self, *devices: GpuDevice, node: NodeName = NODE) -> None:
        known = {d.uuid: d for d in self._cards.get(node, [])} | {d.uuid: d for d in devices}
        self._cards[node] = list(known.values())
        self._sequence += 1
        if self.fake is not None:
            for device in devices:
                self.fake.add_card(node, device)
            return
        assert self.inventory is not None
        inventory = NodeInventory(
            node=node, devices=tuple(known.values()), observed_at=datetime.now(UTC)
        )
        report = AgentInventory(inventory=inventory, agent_id="a", sequence=self._sequence)
        [recorded] = await self.inventory.record_all([report])
        assert recorded is not None

    async def usage(self, name: str) -> DeviceUsage:
        if self.fake is not None:
            return self.fake.usage(GpuUuid(f"GPU-{name}"))
        assert self.inventory is not None
        cards = await self.inventory.cards()
        return next(c.usage for c in cards if c.usage.device.uuid == f"GPU-{name}")

    async def cordon(self, name: str) -> None:
        uuid = GpuUuid(f"GPU-{name}")
        if self.fake is not None:
            self.fake.add_card(NODE, self.fake.usage(uuid).device, cordoned=True)
            return
        assert self.inventory is not None
        assert await self.inventory.set_cordoned(NODE, frozenset({uuid}))

    async def version(self, name: str) -> int:
        uuid = GpuUuid(f"GPU-{name}")
        if self.fake is not None:
            return self.fake.version(uuid)
        assert self.inventory is not None
        return (await self.inventory.versions())[uuid][1]

    async def used_amounts(self, name: str) -> tuple[int, int, int]:
        usage = await self.usage(name)
        return usage.used_slots, usage.used_memory_mib, usage.used_core_percent

    async def history(self, pod: str) -> list[tuple[int, str | None, str]]:
        memory = self.fake or self.inventory
        if isinstance(memory, FakeLedger):
            events = memory.history(PodUid(pod))
            return [(e.sequence, e.previous_state, e.state) for e in events]
        assert self.database is not None
        rows = await self.database.fetch(
            "SELECT sequence, previous_state, state FROM allocation_events WHERE pod_uid = $1"
            " ORDER BY id",
            pod,
        )
        return [tuple(row) for row in rows]

    async def limit(self, namespace: str, amount: int) -> None:
        if isinstance(self.inventory, SimLedger):
            await self.inventory.set_limits(namespace, {MEMORY: amount})
            return
        if self.fake is not None:
            self.fake.set_quota(namespace, MEMORY, amount)
            return
        assert self.database is not None
        await self.database.fetch(
            "INSERT INTO quotas (namespace, resource, limit_amount) VALUES ($1, $2, $3)",
            namespace,
            MEMORY,
            amount,
        )

    async def advance(self, pod: str, target: S, *sources: S, **changes: Any) -> Any:
        live = await self.store.live_of(PodUid(pod))
        assert live is not None
        step = StateStep(
            allocation_id=live.id, sources=frozenset(sources or {live.state}), target=target
        )
        return await self.store.advance(replace(step, **changes))


@asynccontextmanager
async def open_store(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """The store that `request.param` names."""
    if request.param == "fake":
        fake = FakeLedger(quota_of=quota_of, rules=RULES)
        yield Harness(store=fake, ledger=fake, fake=fake)
        return
    if request.param == "simulated":
        simulated = SimLedger(
            on_commit=lambda _changes: None,
            quota_of=quota_of,
            rules=RULES,
            clock=lambda: datetime.now(UTC),
        )
        yield Harness(store=simulated, ledger=simulated, inventory=simulated)
        return
    dsn = request.getfixturevalue("postgres_dsn")
    async with open_database(PostgresSettings(dsn=dsn), application="test") as database:
        store = PostgresAllocationStore(
            database, quota_of=quota_of, rules=RULES, on_commit=lambda: None
        )
        inventory = PostgresInventory(database, on_commit=lambda: None)
        yield Harness(store=store, ledger=store, database=database, inventory=inventory)
