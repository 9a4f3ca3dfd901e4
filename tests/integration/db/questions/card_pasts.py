"""Any past of one card: its states, whether its node reported, and its grants."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import asyncpg
from hypothesis import strategies as st

T0 = datetime(2026, 1, 5, 10, tzinfo=UTC)
SPAN_S = 600
"""Length of the queried span in seconds; events fall before and after it too."""


@dataclass(frozen=True)
class Period:
    """One period of the card."""

    began: int
    ended: int | None
    memory_mib: int
    present: bool
    healthy: bool
    cordoned: bool


class Held(NamedTuple):
    """A grant."""

    began: int
    ended: int | None
    memory_mib: int
    core_percent: int
    namespace: str


@dataclass(frozen=True)
class Past:
    """One card, in seconds from T0."""

    first_seen: int
    since_known: bool
    periods: tuple[Period, ...]
    gaps: tuple[tuple[int, int], ...]
    heard: int | None
    """The last time; None: just now."""
    gone: int | None
    grants: tuple[Held, ...]


moments = st.integers(-100, SPAN_S + 100)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    """Any."""
    cuts = sorted(draw(st.lists(moments, min_size=1, max_size=5, unique=True)))
    ends: list[int | None] = [*cuts[1:], draw(st.sampled_from((None, cuts[-1] + 50)))]
    periods = tuple(
        Period(
            began=began,
            ended=ended,
            memory_mib=draw(st.sampled_from((1000, 2000, 0))),
            present=draw(st.booleans()) or draw(st.booleans()),
            healthy=draw(st.booleans()) or draw(st.booleans()),
            cordoned=draw(st.booleans()),
        )
        for began, ended in zip(cuts, ends, strict=True)
    )
    gap_ends = sorted(draw(st.lists(moments, max_size=4, unique=True)))
    heard = draw(st.one_of(st.none(), moments))
    grants = draw(
        st.lists(
            st.tuples(
                moments,
                st.one_of(st.none(), moments),
                st.sampled_from((250, 700)),
                st.sampled_from((0, 0, 30, 100)),
                st.sampled_from("abc"),
            ),
            max_size=6,
        )
    )
    return Past(
        first_seen=cuts[0] - draw(st.integers(0, 200)),
        since_known=draw(st.booleans()),
        periods=periods,
        gaps=tuple(zip(gap_ends[::2], gap_ends[1::2], strict=False)),
        heard=heard,
        gone=draw(st.one_of(st.none(), moments)) if heard is not None else None,
        grants=tuple(Held(b, e if e is None or e > b else b + 1, *size) for b, e, *size in grants),
    )


def at(seconds: int | None) -> datetime | None:
    """A moment."""
    return None if seconds is None else T0 + timedelta(seconds=seconds)


async def write(connection: asyncpg.Connection, past: Past) -> None:
    """Into an empty ledger."""
    await connection.execute(
        "INSERT INTO nodes (name, source, first_seen_at, inventory_at, gone_at)"
        " VALUES ('n', 'agent', $1, coalesce($2, now()), $3)",
        at(past.first_seen),
        at(past.heard),
        at(past.gone),
    )
    await connection.execute(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
        " ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy)"
        " VALUES ('GPU-0', 'n', 'NVIDIA', 0, 'A100', 4, 1000, 100, 4, 1000, 100, true)"
    )
    await connection.execute("DELETE FROM device_periods")
    await connection.executemany(
        "INSERT INTO device_periods (device_uuid, node, vendor, type, slots, memory_mib,"
        " core_percent, healthy, cordoned, present, began_at, ended_at, since_known)"
        " VALUES ('GPU-0', 'n', 'NVIDIA', 'A100', 4, $1, 100, $2, $3, $4, $5, $6, $7)",
        [
            (
                p.memory_mib,
                p.healthy,
                p.cordoned,
                p.present,
                at(p.began),
                at(p.ended),
                past.since_known or number > 0,
            )
            for number, p in enumerate(past.periods)
        ],
    )
    await connection.executemany(
        "INSERT INTO node_gaps VALUES ('n', $1, $2)", [(at(b), at(e)) for b, e in past.gaps]
    )
    for number, (began, ended, memory_mib, core_percent, namespace) in enumerate(past.grants):
        identifier = f"00000000-0000-4000-8000-{number:012}"
        state = "allocated" if ended is None else "released"
        await connection.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " reserved_at, ended_at) VALUES ($1, $2, $6, $2, 1, 'n', $3, $4, $5)",
            identifier,
            f"p{number}",
            state,
            at(began),
            at(ended),
            namespace,
        )
        # An init container of another size is no slice beside the others.
        await connection.execute(
            "INSERT INTO allocation_devices (allocation_id, container_index, position,"
            " container_name, role, device_uuid, vendor, memory_mib, core_percent)"
            " VALUES ($1, 0, 0, 'i', 'init', 'GPU-0', 'NVIDIA', 100, 0),"
            " ($1, 1, 0, 'a', 'app', 'GPU-0', 'NVIDIA', $2, $3)",
            identifier,
            memory_mib,
            core_percent,
        )


def whole_and_halves(
    dsn: str, function: Literal["capacity_between", "showback_between"], past: Past
) -> list[list[Any]]:
    """Return the function's rows of the whole span, and of its two halves together.

    `dsn` is of an empty ledger, and it stays empty.
    """

    async def ask() -> list[list[Any]]:
        connection = await asyncpg.connect(dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await write(connection, past)
            whole = await connection.fetch(f"SELECT * FROM {function}($1, $2)", T0, at(SPAN_S))
            halves = await connection.fetch(
                "SELECT f.* FROM (VALUES (0, 237), (237, 600)) AS half (b, e), LATERAL"
                f" {function}($1::timestamptz + b * interval '1 second',"
                " $1 + e * interval '1 second') f",
                T0,
            )
            await transaction.rollback()
        finally:
            await connection.close()
        return [whole, halves]

    return asyncio.run(ask())
