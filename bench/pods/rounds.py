"""Rounds of pods of several kinds, in turn, and their results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.pods.system import Bench, Wanted, system

WARM_UP = 24
"""Whole groups, too."""

Row = dict[str, Any]


async def measure(wanted: Wanted, kinds: Sequence[str], pods: int, rounds: int) -> list[Row]:
    """One row per kind of pod: medians over the rounds, which take turns; ratios to the first."""
    async with system(wanted) as bench:
        for kind in kinds:
            await bench.round(kind, WARM_UP)
        await bench.wait_until_idle()
        found: dict[str, list[Row]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                found[kind].append(await _round(bench, kind, pods))
    rows = [_median(kind, found[kind]) for kind in kinds]
    for row in rows:
        row["ratio"] = round(row["per_s"] / rows[0]["per_s"], 2)
    return rows


async def _round(bench: Bench, kind: str, pods: int) -> Row:
    await bench.begin(kind)
    before = await bench.servers.read()
    ran_s, cpu = await bench.round(kind, pods)
    await bench.wait_until_idle()
    counted = (await bench.servers.read()) - before
    return {
        "per_s": pods / ran_s[-1],
        "p50_s": round(ran_s[len(ran_s) // 2], 2),
        "p99_s": round(ran_s[99 * len(ran_s) // 100], 2),
        "per_pod": {
            name: round(count / pods, 2)
            for name, count in sorted(counted.items())
            if count >= pods / 20
        },
        "cpu_ms_per_pod": {
            "all": round(cpu.total() / pods, 1),
            **{name: round(ms / pods, 1) for name, ms in cpu.most_common()},
        },
    }


def _median(kind: str, rounds: list[Row]) -> Row:
    rates = [row["per_s"] for row in rounds]
    return {
        "pods": kind,
        "per_s": round(statistics.median(rates), 1),
        "per_s_rounds": [round(rate, 1) for rate in rates],
        "p50_s": statistics.median(row["p50_s"] for row in rounds),
        "p99_s": statistics.median(row["p99_s"] for row in rounds),
        "per_pod": rounds[-1]["per_pod"],
        "cpu_ms_per_pod": rounds[-1]["cpu_ms_per_pod"],
    }


def row_text(row: Row) -> str:
    """The row's lines."""
    lines = [
        f"{row['pods']:8} {row['per_s']:6.1f} pods/s (rounds {row['per_s_rounds']}), ratio "
        f"{row['ratio']:.2f}, p50 {row['p50_s']:g} s, p99 {row['p99_s']:g} s"
    ]
    for what in ("per_pod", "cpu_ms_per_pod"):
        figures = ", ".join(f"{name} {count:g}" for name, count in row[what].items())
        lines.append(f"  {what.replace('_', ' ')}: {figures}")
    return "\n".join(lines)
