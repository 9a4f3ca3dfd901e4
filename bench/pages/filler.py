"""Fills an empty ledger with a made-up history by COPY, as a restore would.

Triggers and foreign keys are off until it is full (`session_replication_role`); the promises are
checked afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import asyncpg
from hamicommon.ledger.partitions import make_days

from bench.pages import made_up
from bench.pages.bulk import NULL, copy, without_indexes
from bench.pages.made_up import CARDS_PER_NODE, NODES, Grant, card_uuid, node_name, stamp

PER_TICK = 1000
"""Pods that are sampled together."""
DECISION_DAYS = 14
REFUSED_EVERY = 10
"""One pod in so many was refused before it was placed."""
SICK = 60
"""Times that a card was sick in `SICK_DAYS`, for a while each."""
SICK_DAYS = 21

TABLES = (
    "allocations",
    "allocation_devices",
    "allocation_events",
    "usage_samples",
    "usage_rollups",
)
"""The big ones."""

_STEPS = (
    (None, "reserved", 0.0),
    ("reserved", "binding", 0.3),
    ("binding", "bound", 0.4),
    ("bound", "allocated", 1.5),
)
_LIVE_COUNTERS = """
UPDATE devices d SET used_slots = h.slots, used_memory_mib = h.memory, used_core_percent = h.cores
  FROM (SELECT x.device_uuid, sum(x.slots) AS slots, sum(x.memory_mib) AS memory,
               sum(x.core_percent) AS cores
          FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
         WHERE a.ended_at IS NULL GROUP BY 1) h
 WHERE h.device_uuid = d.uuid
"""
# What hami_metrics.domain.samples makes, in one statement.
_ROLL_UP = """
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, pod_uid, namespace, pod_name,
    container, sample_count, memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,
    core_percent_sum, core_percent_max)
SELECT date_bin(make_interval(secs => $1), sampled_at, 'epoch'), $1, node, device_uuid, pod_uid,
       namespace, pod_name, container, count(*), sum(memory_used_bytes), max(memory_used_bytes),
       max(memory_limit_bytes), sum(core_percent), max(core_percent)
  FROM usage_samples GROUP BY 1, node, device_uuid, pod_uid, namespace, pod_name, container
"""

_ROLL_UP_HOURS = """
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, pod_uid, namespace, pod_name,
    container, sample_count, memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,
    core_percent_sum, core_percent_max)
SELECT date_bin('1 hour', bucket_start, 'epoch'), 3600, node, device_uuid, pod_uid, namespace,
       pod_name, container, sum(sample_count), sum(memory_used_sum_bytes),
       max(memory_used_max_bytes), max(memory_limit_max_bytes), sum(core_percent_sum),
       max(core_percent_max)
  FROM usage_rollups GROUP BY 1, node, device_uuid, pod_uid, namespace, pod_name, container
"""


async def fill(
    connection: asyncpg.Connection,
    *,
    allocations: int,
    usage: int,
    days: float,
    until: datetime,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Return the seconds by step. The database has the tables, all empty."""
    took: dict[str, float] = {}

    async def step(what: str, work: Any) -> None:
        started = time.perf_counter()
        await work
        took[what] = round(time.perf_counter() - started, 1)
        report(f"{what}: {took[what]} s")

    history = list(made_up.grants(allocations, days=days, until=until))
    await connection.execute("SET session_replication_role = replica")
    await connection.execute("SET synchronous_commit = off")
    await connection.execute("SET work_mem = '512MB'")
    await _cluster(connection)

    async def load() -> None:
        async with without_indexes(connection, TABLES):
            await step("grants", _grants(connection, history))
            await step("events", _events(connection, history))
            await step("decisions", _decisions(connection, history, until))
            await _sick(connection, until)
            await step("usage", _usage(connection, history, usage, until))
            await step("sums of 5 minutes", connection.execute(_ROLL_UP, 300))
            await step("sums of hours", connection.execute(_ROLL_UP_HOURS))

    await step("all of these and their indexes", load())
    await connection.execute("SET session_replication_role = origin")
    await connection.execute(_LIVE_COUNTERS)
    await step("vacuum", connection.execute("VACUUM (ANALYZE)"))
    return took


async def _cluster(connection: asyncpg.Connection) -> None:
    await connection.executemany(
        "INSERT INTO nodes (name, inventory_at) VALUES ($1, now())",
        [(node_name(n),) for n in range(NODES)],
    )
    await connection.executemany(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)"
        " VALUES ($1, $2, 'NVIDIA', $3, 'NVIDIA A100', $4, $5, 100, $4, $5, 100, true)",
        [
            (
                card_uuid(n),
                node_name(n // CARDS_PER_NODE),
                n % CARDS_PER_NODE,
                made_up.SLOTS,
                made_up.CARD_MIB,
            )
            for n in range(NODES * CARDS_PER_NODE)
        ],
    )


async def _grants(connection: asyncpg.Connection, history: list[Grant]) -> None:
    await copy(
        connection,
        "allocations (id, pod_uid, namespace, pod_name, attempt, node, state, token, reserved_at,"
        " binding_at, bound_at, allocated_at, ended_at)",
        (
            f"{g.id}\t{g.pod_uid}\t{g.namespace}\t{g.pod_name}\t1\t{g.node}"
            f"\t{'allocated' if g.ended is None else 'released'}\t{g.number + 1}"
            f"\t{stamp(g.reserved)}\t{stamp(g.reserved + 0.3)}\t{stamp(g.reserved + 0.4)}"
            f"\t{stamp(g.reserved + 1.5)}\t{NULL if g.ended is None else stamp(g.ended)}\n"
            for g in history
        ),
    )
    await connection.execute("SELECT setval('allocation_tokens', $1)", len(history) + 1)
    await copy(
        connection,
        "allocation_devices (allocation_id, container_index, position, container_name, role,"
        " device_uuid, vendor, memory_mib, core_percent)",
        (
            f"{g.id}\t0\t0\tmain\tapp\t{g.uuid}\tNVIDIA\t{made_up.SLICE_MIB}"
            f"\t{made_up.SLICE_CORES}\n"
            for g in history
        ),
    )


async def _events(connection: asyncpg.Connection, history: list[Grant]) -> None:
    def lines() -> Iterator[str]:
        for g in history:
            for n, (before, state, after_s) in enumerate(_STEPS, start=1):
                at = stamp(g.reserved + after_s)
                yield f"{g.pod_uid}\t{n}\t{g.id}\t{before or NULL}\t{state}\tscheduler\t{at}\n"
            if g.ended is not None:
                at = stamp(g.ended)
                yield f"{g.pod_uid}\t5\t{g.id}\tallocated\treleased\twatch\t{at}\n"

    columns = "pod_uid, sequence, allocation_id, previous_state, state, actor, at"
    await copy(connection, f"allocation_events ({columns})", lines())


async def _decisions(connection: asyncpg.Connection, history: list[Grant], until: datetime) -> None:
    since = until - timedelta(days=DECISION_DAYS)
    days = [day.date() for day in made_up.day_span(since.timestamp(), until)]
    await make_days(connection, "decisions", "at", days)

    def lines() -> Iterator[str]:
        for g in history:
            if g.reserved < since.timestamp():
                continue
            pod = f"{g.pod_uid}\t{g.namespace}\t{g.pod_name}"
            if g.number % REFUSED_EVERY == 0:
                at = stamp(g.reserved - 5 - g.number % 900)
                reason = made_up.REASONS[g.number // REFUSED_EVERY % len(made_up.REASONS)]
                counts = f'{{"{reason}": {NODES}}}'
                message = f"no node has a card for the pod: {reason} on {NODES} nodes"
                line = f"{at}\t{stamp(g.reserved)}\t{pod}\trefused\t{NULL}\t{counts}\t{message}"
                yield f"{line}\t9\t{stamp(g.reserved)}\tbound\n"
            at = stamp(g.reserved)
            yield f"{at}\t{at}\t{pod}\tplaced\t{g.id}\t{{}}\t\t1\t-infinity\t{NULL}\n"

    columns = (
        "at, last_at, pod_uid, namespace, pod_name, outcome, allocation_id, reason_counts, message,"
        " repeat_count, wait_ended_at, wait_end"
    )
    await copy(connection, f"decisions ({columns})", lines())


async def _sick(connection: asyncpg.Connection, until: datetime) -> None:
    rows = []
    for n in range(SICK):
        card = n * 13 % (NODES * CARDS_PER_NODE)
        since = until - timedelta(days=SICK_DAYS * (1 - n / SICK), minutes=30)
        where = (node_name(card // CARDS_PER_NODE), card_uuid(card))
        rows += [
            (*where, False, "XID 79: the card has fallen off the bus", since),
            (*where, True, "", since + timedelta(minutes=20 + n)),
        ]
    await connection.executemany(
        "INSERT INTO device_health_events (node, device_uuid, healthy, reason, at)"
        " VALUES ($1, $2, $3, $4, $5)",
        sorted(rows, key=lambda row: row[-1]),
    )


async def _usage(
    connection: asyncpg.Connection, history: list[Grant], usage: int, until: datetime
) -> None:
    ticks = made_up.ticks(usage, PER_TICK, until)
    days = [day.date() for day in made_up.day_span(ticks[0], until)]
    await make_days(connection, "usage_samples", "sampled_at", days)

    def lines() -> Iterator[str]:
        coming = iter(history)
        following = next(coming, None)
        live: dict[str, tuple[float, str]] = {}
        for number, tick in enumerate(ticks):
            while following is not None and following.reserved <= tick:
                g = following
                pod = f"{g.pod_uid}\t{g.namespace}\t{g.pod_name}"
                gone = float("inf") if g.ended is None else g.ended
                live[g.id] = (gone, f"{g.node}\t{g.uuid}\t{pod}")
                following = next(coming, None)
            for key in [key for key, (gone, _) in live.items() if gone <= tick]:
                del live[key]
            at, busy = stamp(tick), number % 11
            for n, (_, who) in enumerate(islice(live.values(), PER_TICK)):
                used = 1 << 20 + n % 11
                yield f"{at}\t{who}\tmain\t{used}\t4294967296\t{(busy + n) % 10}.5\t10\n"

    columns = (
        "sampled_at, node, device_uuid, pod_uid, namespace, pod_name, container, memory_used_bytes,"
        " memory_limit_bytes, core_percent, core_limit_percent"
    )
    await copy(connection, f"usage_samples ({columns})", islice(lines(), usage))
