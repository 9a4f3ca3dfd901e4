"""The placement engine alone: one container, one card, on clusters of 8 cards per node.

Prints p50 and p99 of `decide` for each size, beside a plain-loop model of the same rules in the
same run, and writes bench/results/engine.json. No server is involved; `/filter` is benched apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.placement.place import decide
from hamicommon.placement.view import CardState, ClusterView

from tests.reference import model, node_scores
from tests.reference.inventory import Card
from tests.reference.inventory import card as model_card
from tests.reference.requests import request as model_request
from tests.unit.hamicommon.placement import clusters

RESULTS = Path(__file__).parent / "results" / "engine.json"
CARDS = 8
SIZES = (100, 400, 1000, 5000)
PODS_PER_NODE = 32
"""Of 8 GiB, 10 % of the cores and one of ten slots each: 40 % of everything is granted."""
BUDGET_MS = {1000: 1.0, 5000: 3.0}
"""p50 of one decision that finds a node."""

REQUESTS: dict[str, PodRequest] = {
    "fits": clusters.pod(clusters.cards(memory_mib=4096, core_percent=10)),
    "fits nowhere": clusters.pod(clusters.cards(memory_mib=90_000)),
    "two containers": clusters.pod(
        clusters.cards(memory_mib=4096, core_percent=10), clusters.cards(memory_mib=2048)
    ),
}


def cluster(nodes: int, seed: int) -> dict[NodeName, list[DeviceUsage]]:
    """Nodes of 80 GiB cards with `PODS_PER_NODE` slices of 8 GiB each, on cards at random."""
    chance = random.Random(seed)
    found: dict[NodeName, list[DeviceUsage]] = {}
    for number in range(nodes):
        held = [0] * CARDS
        for _ in range(PODS_PER_NODE):
            held[chance.randrange(CARDS)] += 1
        found[NodeName(f"node-{number:04}")] = [
            clusters.card(
                f"GPU-{number:04}-{index}",
                index=index,
                memory_mib=81920,
                numa=index // 4,
                used=(min(n, 10), min(n, 10) * 8192, min(n, 10) * 10),
            )
            for index, n in enumerate(held)
        ]
    return found


def view_of(nodes: dict[NodeName, list[DeviceUsage]]) -> ClusterView:
    """The same as the engine sees it."""
    view = ClusterView()
    for name, usages in nodes.items():
        view.set_node(name, [CardState(usage, 1) for usage in usages])
    return view


def timed(call: Callable[[], object], runs: int) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    for _ in range(min(runs, 10)):
        call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    p50, p99 = np.percentile(times, (50, 99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


ModelNodes = dict[str, list[Card]]


def model_nodes(nodes: dict[NodeName, list[DeviceUsage]]) -> ModelNodes:
    """The same as the reference model sees it."""
    return {
        name: [
            model_card(
                each.device.vendor,
                each.device.uuid,
                each.device.index,
                count=each.device.slots,
                mem=each.device.memory_mib,
                core=each.device.core_percent,
                numa=each.device.numa,
                type=each.device.type,
                used=each.used_slots,
                used_mem=each.used_memory_mib,
                used_core=each.used_core_percent,
            )
            for each in usages
        ]
        for name, usages in nodes.items()
    }


def plain_loop(request: PodRequest, nodes: ModelNodes) -> str | None:
    """The reference model's choice, which looks at every card of every node for every pod."""
    containers = [
        (
            str(container.role),
            [
                model_request(
                    each.vendor, each.count, memory=each.memory_mib, cores=each.core_percent
                )
                for each in container.requests
            ],
        )
        for container in request.containers
    ]
    annotations = {"hami.io/node-scheduler-policy": request.policy.node}
    node: dict[str, Any] = {"metadata": {}}
    fit = {
        name: float(node_scores.node_score(cards))
        for name, cards in nodes.items()
        if not model.on_node(node, cards, containers, annotations)[1]
    }
    return model.choose(fit, annotations)


def measure(runs: int) -> list[dict[str, Any]]:
    """One row per size, request and node policy."""
    rows = []
    for size in SIZES:
        nodes = cluster(size, seed=size)
        view, plain = view_of(nodes), model_nodes(nodes)
        for label, base in REQUESTS.items():
            for policy in ("binpack", "spread"):
                request = replace(base, policy=Policy(node=policy))
                row = {"nodes": size, "request": label, "policy": policy}
                rows.append(row | compared(request, view, plain, runs))
    return rows


def compared(
    request: PodRequest, view: ClusterView, nodes: ModelNodes, runs: int
) -> dict[str, float]:
    """Times of the engine and of the model, which must choose the same node."""
    names = tuple(map(NodeName, nodes))
    chosen = decide(request, view, candidates=names).placement
    if (chosen.node if chosen else None) != plain_loop(request, nodes):
        raise SystemExit(f"the engine and the model disagree on {request}")
    engine = timed(lambda: decide(request, view, candidates=names), runs)
    plain = timed(lambda: plain_loop(request, nodes), max(runs // 100, 3))
    return engine | {
        "plain_p50_ms": plain["p50_ms"],
        "times_faster": round(plain["p50_ms"] / engine["p50_ms"], 1),
    }


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """By request and policy, how p50 grows from the smallest to the largest cluster, and budgets.

    "fits nowhere" has no budget here: it makes the reason of every node.
    """
    found = []
    for label in REQUESTS:
        for policy in ("binpack", "spread"):
            p50 = {
                row["nodes"]: row["p50_ms"]
                for row in rows
                if (row["request"], row["policy"]) == (label, policy)
            }
            times = round(p50[SIZES[-1]] / p50[SIZES[0]], 1)
            line = f"{label}, {policy}: p50 x {times} from {SIZES[0]} to {SIZES[-1]} nodes"
            if label == "fits":
                line += "".join(
                    f"; {size} nodes {p50[size]} ms of {budget}"
                    for size, budget in BUDGET_MS.items()
                )
            found.append(line)
    return found


def machine() -> dict[str, Any]:
    """What it ran on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    rows, where = measure(parser.parse_args().runs), machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(f"{CARDS} cards and {PODS_PER_NODE} placed pods per node, all nodes are candidates\n")
    columns = list(rows[0])
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(f"{row[name]!s:>14}" for name in columns))
    print()
    print(*growth(rows), sep="\n")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
