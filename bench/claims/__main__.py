"""Pods/s and API writes per pod by way: no card, limits, and claims.

`KUBEBUILDER_ASSETS=... make bench-claims` (Kubernetes 1.36): the system of `make bench-pods`, and
kube-controller-manager, which makes a claim for each pod of its template. kube-scheduler is stopped
until all pods of a round and their claims are there, so who makes them is not in the seconds; what
they write is in the writes. kube-scheduler allocates claims, and the ledger grants when the node
prepares or, of pods that our scheduler binds, then; rounds of all kinds of pods come in turn.
Prints the table and writes bench/results/claims.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import uvloop

from bench.filter.figures import machine
from bench.filter.system import end_when_asked
from bench.pods.counters import WRITES
from bench.pods.rounds import Row, measure, shown
from bench.pods.system import BOUND_CLAIMS, CLAIMS, Wanted

RESULTS = Path(__file__).resolve().parents[1] / "results" / "claims.json"
KINDS = ("without", "spread", CLAIMS, BOUND_CLAIMS)


def writes(row: Row) -> float:
    """Return the writes of the API server per pod, events not counted."""
    counted: dict[str, float] = row["per_pod"]
    made = (name for name in counted if name.startswith(WRITES) and not name.endswith(" events"))
    return round(sum(counted[name] for name in made), 1)


def main() -> None:
    """Measures, prints and writes down."""
    end_when_asked()
    parser = argparse.ArgumentParser(prog="make bench-claims", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=200, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.pods} pods at once on {given.nodes} nodes")
    wanted = Wanted(nodes=given.nodes, claims=True)
    rows = uvloop.run(measure(wanted, KINDS, given.pods, given.rounds))
    for row in rows:
        row["writes_per_pod"] = writes(row)
        print(f"{shown(row)}\n  API writes per pod: {row['writes_per_pod']:g}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
