"""From pods at the API server to pods that run, through a real kube-scheduler, with and without us.

`KUBEBUILDER_ASSETS=... make bench-pods`: 200 pods together on 100 nodes. etcd, kube-apiserver and
kube-scheduler are real; our scheduler runs over durable Postgres, Redis and NATS; this process
plays the kubelets and node-agents of all nodes. kube-scheduler is stopped until all pods of a round
exist, so the figures exclude their creation. Rounds take turns: pods without cards (kube-scheduler
does not call the extender for them), with one slice each spread, and binpacked. Prints pods/s, the
ratio to those without cards (budget 0.6 of architecture 7), the seconds until half and 99 % of the
pods ran, the servers' counts per pod (from a checkpoint until everything is written and announced),
and the CPU time per pod by program until the last one ran; writes bench/results/pods.json.

Measure with an interpreter that is built like that of the images, with profile-guided optimisation:
`PYTHON=/usr/bin/python3 make setup` (tests/README.md).

`--way claims` (Kubernetes 1.36): kinds of pods are without cards, by limits, and by ResourceClaims,
bound by kube-scheduler and by ours; kube-controller-manager makes a claim for each pod of its
template before kube-scheduler continues. API writes per pod are printed, too (docs/dra.md).
`--way groups`: the same pods singly, and in groups of eight that start together (docs/groups.md).
`--binding late`: the nodes bind late, so several pods may be on their way to one of them.
`--node-percent N`: kube-scheduler looks at so many percent of the nodes (100 nodes at least).
`--beside URL`: an extender that runs already is called in place of ours, with the same pods in the
same rounds, on nodes whose cards are annotations. It must watch the same API server, whose
kubeconfig is printed; the rounds begin when it answers there.
"""

from __future__ import annotations

import argparse

import uvloop

from bench.figures import print_machine, write_results
from bench.pods.counters import WRITES
from bench.pods.rounds import Row, measure, row_text
from bench.pods.system import BOUND_CLAIMS, CLAIMS, GROUPS, Wanted
from bench.servers import end_when_asked

BUDGET_RATIO = 0.6
KINDS = {
    "limits": ("without", "spread", "binpack"),
    "claims": ("without", "spread", CLAIMS, BOUND_CLAIMS),
    "groups": ("spread", GROUPS),
}


def writes(row: Row) -> float:
    """Return the writes of the API server per pod, events not counted."""
    counted: dict[str, float] = row["per_pod"]
    made = (name for name in counted if name.startswith(WRITES) and not name.endswith(" events"))
    return round(sum(counted[name] for name in made), 1)


def main() -> None:
    """Measure, print and write the results."""
    end_when_asked()
    parser = argparse.ArgumentParser(prog="make bench-pods", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=200, help="of one round; whole groups")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=tuple(KINDS), default="limits")
    parser.add_argument("--binding", choices=("lock", "late"), default="lock")
    parser.add_argument(
        "--node-percent", type=int, default=0, help="percentageOfNodesToScore of kube-scheduler"
    )
    parser.add_argument("--beside", default="", metavar="URL", help="an extender in place of ours")
    given = parser.parse_args()
    wanted = Wanted(
        nodes=given.nodes,
        late=given.binding == "late",
        node_percent=given.node_percent,
        beside=given.beside,
        claims=given.way == "claims",
    )
    rows = uvloop.run(measure(wanted, KINDS[given.way], given.pods, given.rounds))
    print(f"{given.pods} pods at once on {given.nodes} nodes; budget: {BUDGET_RATIO} of `without`")
    where = print_machine()
    for row in rows:
        row["writes_per_pod"] = writes(row)
        print(f"{row_text(row)}\n  API writes per pod: {row['writes_per_pod']:g}")
    write_results("pods" if given.way == "limits" else given.way, {"machine": where, "rows": rows})


if __name__ == "__main__":
    main()
