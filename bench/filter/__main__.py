"""/filter over HTTP on a real scheduler process, durable Postgres, Redis, NATS and an API server.

Each row is a cluster with placed pods; the new pods exist at the API server. One client asks in
sequence (p50, p99), then eight ask concurrently (decisions/s). Everything that production does is
on: fsync and synchronous_commit, traces to a file, decision records, outbox to NATS, pod events.
The benchmark checks that the records and announcements arrived. `cpu_ms` is the scheduler's CPU
time per decision with all its background work; on a busy machine it shows more than the latencies.
Prints the budgets of architecture 7 beside the figures and writes bench/results/filter.json.

With `--agents`, the node-agents of all nodes report concurrently, to show what a large cluster
costs (docs/scale.md, `ARGS="--agents --fill 40 --sizes 1000,5000,10000"`): their messages, and the
cores of scheduler, Postgres and NATS without a pod to place. `some_*` is /filter with the names
that kube-scheduler looks at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench.figures import (
    cpu_s,
    fdatasync_ms,
    percentile,
    print_machine,
    resident_mb,
    write_results,
)
from bench.filter.agents import agents, heartbeats
from bench.filter.cluster import Fill
from bench.filter.load import (
    WARM_UP,
    all_at_once,
    looking_at_some,
    new_pods,
    one_after_the_other,
    phases_ms,
)
from bench.filter.objects import CARDS
from bench.filter.system import Bench, system
from bench.servers import end_when_asked, wait_until_quiet

SIZES = (100, 400, 1000, 5000)
AS_HAMI = {
    100: Fill(title="as HAMi", pods_per_node=24, memory_mib=4096, core_percent=10),
    400: Fill(title="as HAMi", pods_per_node=16, memory_mib=4096, core_percent=10),
    1000: Fill(title="as HAMi", pods_per_node=16, memory_mib=4096, core_percent=10),
}
"""Nodes -> the placed pods that HAMi was measured with."""
FORTY = Fill(title="40 %", pods_per_node=16, memory_mib=16_384, core_percent=20)
"""Two slices per card, each a fifth of its memory and cores."""
BUDGET_MS = {100: 4.0, 400: 5.0, 1000: 6.0}
"""Nodes -> budget of p50 in ms, plus one fsync."""
BUDGET_PER_S = 200
BUDGET_MB = 300
BUDGET_GROWTH = 3.0

Row = dict[str, Any]


def measure(nodes: int, fill: Fill, runs: int, node_policy: str, *, reporting: bool) -> Row:
    """One row of the table."""
    budget_ms = BUDGET_MS.get(nodes) if fill.title == "as HAMi" else None
    placed = nodes * fill.pods_per_node
    with system(nodes, fill, node_policy) as bench:
        row: Row = {"nodes": nodes, "fill": fill.title, "placed_pods": placed, **bench.start}
        if not reporting:
            return row | _measure(bench, runs, budget_ms)
        with agents(bench):
            row |= heartbeats(bench) | _measure(bench, runs, budget_ms, cores=0.5)
            spent_ms = looking_at_some(bench, new_pods(bench, runs, prefix="more"))
        return row | {
            "some_p50_ms": round(statistics.median(spent_ms), 2),
            "some_p99_ms": round(percentile(spent_ms, 0.99), 2),
        }


def _measure(bench: Bench, runs: int, budget_ms: float | None, cores: float = 0.1) -> Row:
    """`cores`: the scheduler uses less when no pod comes."""
    pods = new_pods(bench, WARM_UP + 2 * runs)
    wait_until_quiet(bench.pid, cores=cores)
    fsync_ms = fdatasync_ms(bench.folder)
    one_after_the_other(bench, pods[:WARM_UP])
    wait_until_quiet(bench.pid, cores=cores)
    used_s = cpu_s(bench.pid)
    mine, crowd = pods[WARM_UP : WARM_UP + runs], pods[WARM_UP + runs :]
    single_ms = one_after_the_other(bench, mine)
    phases = phases_ms(bench, mine)
    single_s, used_s = cpu_s(bench.pid) - used_s, cpu_s(bench.pid)
    per_s, crowd_ms = all_at_once(bench, crowd)
    phases_ms(bench, crowd)
    crowd_s = cpu_s(bench.pid) - used_s
    return {
        "fsync_ms": round(fsync_ms, 3),
        "p50_ms": round(statistics.median(single_ms), 2),
        "p99_ms": round(percentile(single_ms, 0.99), 2),
        "budget_ms": None if budget_ms is None else round(budget_ms + fsync_ms, 2),
        "cpu_ms": round(single_s * 1000 / runs, 2),
        "per_s_8": round(per_s),
        "p50_ms_8": round(statistics.median(crowd_ms), 2),
        "p99_ms_8": round(percentile(crowd_ms, 0.99), 2),
        "cpu_ms_8": round(crowd_s * 1000 / runs, 2),
        "resident_mb": round(resident_mb(bench.pid)),
        **{f"{phase}_ms": value for phase, value in phases.items()},
    }


def growth(rows: list[Row]) -> float | None:
    """p50 at the largest size over p50 at the smallest, of the rows at 40 %."""
    by_size = {row["nodes"]: row["p50_ms"] for row in rows if row["fill"] == FORTY.title}
    if len(by_size) < 2:
        return None
    return round(float(by_size[max(by_size)] / by_size[min(by_size)]), 2)


def report(rows: list[Row]) -> None:
    """Print the table, one column per row, and the verdicts."""
    for name in rows[0]:
        print(f"{name:>18}  " + "  ".join(f"{row[name]!s:>9}" for row in rows))
    if (found := growth(rows)) is not None:
        print(f"\ngrowth of p50 at 40 %: {found} (budget {BUDGET_GROWTH} from 100 to 5000 nodes)")
    print(f"budgets: {BUDGET_PER_S} decisions/s with 8 at once at 400 nodes (per_s_8),")
    print(f"{BUDGET_MB} MB at 1000 nodes as HAMi; budget_ms is p50 at one client with one fsync")


def main() -> None:
    """Measure, print the table and write the results."""
    end_when_asked()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="decisions per client mode")
    parser.add_argument(
        "--sizes", type=lambda text: [int(part) for part in text.split(",")], default=list(SIZES)
    )
    policies = ("binpack", "spread", "fragmentation")
    parser.add_argument("--node-policy", choices=policies, default="binpack")
    parser.add_argument("--fill", choices=("hami", "40", "both"), default="both")
    parser.add_argument("--agents", action="store_true", help="all nodes report at the same time")
    arguments = parser.parse_args()
    cases = [(n, AS_HAMI[n]) for n in arguments.sizes if n in AS_HAMI and arguments.fill != "40"]
    cases += [(n, FORTY) for n in arguments.sizes if arguments.fill != "hami"]
    where = print_machine()
    print(f"{CARDS} cards per node, durable Postgres, NATS, Redis, emulated API server;")
    print("traces, decision records, outbox and pod events on;")
    print(f"node policy {arguments.node_policy}\n", flush=True)
    rows = []
    for nodes, fill in cases:
        started = time.monotonic()
        policy, reporting = arguments.node_policy, arguments.agents
        rows.append(measure(nodes, fill, arguments.runs, policy, reporting=reporting))
        took_s = time.monotonic() - started
        print(f"{nodes} nodes, {fill.title}: {took_s:.0f} s", flush=True)
    print()
    report(rows)
    result = {"machine": where, "node_policy": arguments.node_policy, "rows": rows}
    write_results("filter", result | {"growth_p50": growth(rows)})


if __name__ == "__main__":
    main()
