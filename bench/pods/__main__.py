"""From pods at the API server to pods that run, through a real kube-scheduler, with and without us.

`KUBEBUILDER_ASSETS=... make bench-pods`: 200 pods at once on 100 nodes. etcd, kube-apiserver and
kube-scheduler are real; our scheduler runs over durable Postgres, Redis and NATS; the kubelets and
node-agents of all nodes are played by this process. kube-scheduler is stopped until all pods of a
round are there, so their creation is not in the figures. Rounds take turns: pods without cards
(kube-scheduler does not call the extender for them), with one slice each spread, and binpacked.
Prints pods/s, the ratio to those without cards (budget 0.6 of architecture 7), the seconds after
which half and 99 % of the pods ran, what the servers counted per pod (from a checkpoint until all
is written and announced), and the CPU time per pod by program until the last one ran; writes
bench/results/pods.json.

`--binding late`: the nodes bind late, so several pods may be on their way to one of them.
`--replicas N`: so many processes of our scheduler behind one address (SO_REUSEPORT).
`--beside URL`: an extender that runs already is asked in place of ours, with the same pods in the
same rounds, on nodes whose cards are annotations. It must watch the same API server, whose
kubeconfig is printed; the rounds begin when it answers there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import uvloop

from bench.filter.figures import machine
from bench.filter.system import end_when_asked
from bench.pods.system import Bench, Wanted, system

RESULTS = Path(__file__).resolve().parents[1] / "results" / "pods.json"
BUDGET_RATIO = 0.6
KINDS = ("without", "spread", "binpack")
WARM_UP = 20

Row = dict[str, Any]


async def measure(wanted: Wanted, pods: int, rounds: int) -> list[Row]:
    """One row per kind of pod: medians over the rounds."""
    async with system(wanted) as bench:
        for kind in KINDS:
            await bench.round(kind, WARM_UP)
        await bench.calm()
        found: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(await _round(bench, kind, pods))
    rows = [_median(kind, found[kind]) for kind in KINDS]
    for row in rows:
        row["ratio"] = round(row["per_s"] / rows[0]["per_s"], 2)
    return rows


async def _round(bench: Bench, kind: str, pods: int) -> Row:
    await bench.checkpoint()
    before = await bench.servers.read()
    ran_s, cpu = await bench.round(kind, pods)
    await bench.calm()
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


def main() -> None:
    """Measures, prints and writes down."""
    end_when_asked()
    parser = argparse.ArgumentParser(prog="make bench-pods", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=200, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binding", choices=("lock", "late"), default="lock")
    parser.add_argument("--replicas", type=int, default=1, help="of our scheduler")
    parser.add_argument("--beside", default="", metavar="URL", help="an extender in place of ours")
    given = parser.parse_args()
    wanted = Wanted(
        nodes=given.nodes,
        late=given.binding == "late",
        replicas=given.replicas,
        beside=given.beside,
    )
    rows = uvloop.run(measure(wanted, given.pods, given.rounds))
    print(f"{given.pods} pods at once on {given.nodes} nodes; budget: {BUDGET_RATIO} of `without`")
    for row in rows:
        print(
            f"{row['pods']:8} {row['per_s']:6.1f} pods/s (rounds {row['per_s_rounds']}), ratio "
            f"{row['ratio']:.2f}, p50 {row['p50_s']:g} s, p99 {row['p99_s']:g} s"
        )
        for what in ("per_pod", "cpu_ms_per_pod"):
            figures = ", ".join(f"{name} {count:g}" for name, count in row[what].items())
            print(f"  {what.replace('_', ' ')}: {figures}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
