"""Writers that go on while the ledger is migrated, questioned and tidied: do they ever wait?

One gives grants their whole life (reserved to released) with the scheduler's own store, one writes
usage as the metrics service does. Each call is timed.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.domain.samples import Sample, Series
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hamicommon.domain.allocations import AllocationState as S
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import CapacityConflict, HamiError
from hamicommon.ledger.database import open_database
from hamicommon.ledger.model import Draft, StateStep
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings

from bench.filter.figures import percentile
from bench.sql import made_up

PAUSE_S = 0.01
SAMPLES_AT_ONCE = 100
STEPS = (
    (S.RESERVED, S.BINDING, True),
    (S.BINDING, S.BOUND, False),
    (S.BOUND, S.ALLOCATED, False),
    (S.ALLOCATED, S.RELEASED, False),
)
"""(from, to, hands out a token)."""


@dataclass
class Times:
    """Milliseconds of each call, and what was refused."""

    grant_ms: list[float] = field(default_factory=list)
    usage_ms: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """p50 and worst of both; how many calls were refused."""
        return {
            "grant_calls": len(self.grant_ms),
            **_figures("grant", self.grant_ms),
            "usage_calls": len(self.usage_ms),
            **_figures("usage", self.usage_ms),
            "refused": len(self.refused),
            **({"first_refusal": self.refused[0]} if self.refused else {}),
        }


def _figures(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"{name}_p50_ms": round(statistics.median(values), 2),
        f"{name}_p99_ms": round(percentile(values, 0.99), 2),
        f"{name}_max_ms": round(max(values), 1),
    }


@asynccontextmanager
async def writing(settings: PostgresSettings) -> AsyncIterator[Times]:
    """Both writers go on inside the block."""
    times = Times()
    async with (
        open_database(settings, application="bench") as database,
        open_pool(settings, "bench") as pool,
    ):
        store = PostgresAllocationStore(database, quota_of=lambda _: {}, on_commit=lambda: None)
        tasks = [
            asyncio.create_task(_grant(store, times)),
            asyncio.create_task(_sample(PostgresUsageStore(pool), times)),
        ]
        try:
            yield times
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    raise result


async def _grant(store: PostgresAllocationStore, times: Times) -> None:
    for number in itertools.count():
        draft = _draft(number)
        try:
            await _timed(times.grant_ms, store.begin(draft))
            for source, target, token in STEPS:
                step = StateStep(
                    allocation_id=draft.allocation_id,
                    sources=frozenset({source}),
                    target=target,
                    new_token=token,
                    lease_s=30.0 if target is S.BINDING else None,
                )
                await _timed(times.grant_ms, store.advance(step))
        except CapacityConflict:
            continue  # the made-up history has filled that card
        except HamiError as exc:
            times.refused.append(str(exc))
        await asyncio.sleep(PAUSE_S)


def _draft(number: int) -> Draft:
    card = number % (made_up.NODES * made_up.CARDS_PER_NODE)
    share = DeviceShare(
        uuid=GpuUuid(made_up.card_uuid(card)),
        vendor="NVIDIA",
        memory_mib=made_up.SLICE_MIB,
        core_percent=made_up.SLICE_CORES,
    )
    pod = str(uuid.uuid4())
    return Draft(
        allocation_id=AllocationId(str(uuid.uuid4())),
        pod_uid=PodUid(pod),
        namespace="team-01",
        pod_name=f"bench-{pod[:8]}",
        placement=Placement(
            node=NodeName(made_up.node_name(card // made_up.CARDS_PER_NODE)),
            containers=(ContainerGrant(index=0, name="main", role="app", shares=(share,)),),
        ),
        lease_s=60.0,
    )


async def _sample(store: PostgresUsageStore, times: Times) -> None:
    while True:
        now = datetime.now(UTC)
        samples = [
            Sample(
                series=Series(
                    node=made_up.node_name(n % made_up.NODES),
                    device_uuid=made_up.card_uuid(n),
                    pod_uid=f"bench-{n}",
                    namespace="team-01",
                ),
                sampled_at=now,
                core_percent=5.0,
            )
            for n in range(SAMPLES_AT_ONCE)
        ]
        try:
            await _timed(times.usage_ms, store.write(samples))
        except HamiError as exc:
            times.refused.append(str(exc))
        await asyncio.sleep(PAUSE_S)


async def _timed(spent_ms: list[float], call: Any) -> None:
    started = time.perf_counter()
    try:
        await call
    finally:
        spent_ms.append((time.perf_counter() - started) * 1000)
