"""The placement engine alone, on clusters of up to 5000 nodes.

Prints p50 and p99 of `decide` for each size, beside the reference model on the same cluster, and
writes bench/results/engine.json: slices of NVIDIA cards on 8 cards per node, then requests that a
vendor's chooser answers node by node. One node changes between two decisions; `first` is a decision
on a shape of pod that is new. No server is involved; `/filter` is benched apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.vendors.pod_request import pod_request

from bench.clusters import KINDS, PODS_PER_NODE, Cluster, cluster
from tests.reference import model
from tests.reference.node_scores import node_score, vendor_score
from tests.reference.requests import requests_of
from tests.unit.hamicommon.simulation.objects import every_vendor

RESULTS = Path(__file__).parent / "results" / "engine.json"
SIZES = (100, 400, 1000, 5000)
CHOOSER_SIZES = (100, 1000)
BUDGET_MS = {1000: 1.0, 5000: 3.0}
"""p50 of one decision that finds a node for a slice of an NVIDIA card."""
FRAGMENTATION_BUDGET = 1.5
"""p50 of the node policy `fragmentation` for such a slice, in those of binpack."""
CHOOSER_BUDGET_MS = 25.0
"""The same at 1000 nodes for what a vendor's chooser must be asked of every node."""

VENDORS = every_vendor()
Limits = dict[str, str]

SLICES: dict[str, list[Limits]] = {
    "fits": [{"gpu": "1", "gpumem": "4096", "gpucores": "10"}],
    "fits nowhere": [{"gpu": "1", "gpumem": "90000"}],
    "two containers": [
        {"gpu": "1", "gpumem": "4096", "gpucores": "10"},
        {"gpu": "1", "gpumem": "2048"},
    ],
}
CHOSEN: dict[str, tuple[str, Limits]] = {
    "1 Neuron core": ("neuron", {"aws.amazon.com/neuroncore": "1"}),
    "4 Neuron devices": ("neuron", {"aws.amazon.com/neuron": "4"}),
    "4 chips 910B3": ("910b3", {"huawei.com/Ascend910B3": "4"}),
    "4 chips 910C": ("910c", {"huawei.com/Ascend910C": "4"}),
    "4 XPUs": ("kunlun", {"kunlunxin.com/xpu": "4"}),
    "2 vXPUs": ("vxpu", {"kunlunxin.com/vxpu": "2", "kunlunxin.com/vxpu-memory": "24576"}),
    "4 Vastai dies": ("vastai", {"vastaitech.com/va": "4"}),
}


def pod(containers: list[Limits], policy: str) -> dict[str, Any]:
    """A pod with these limits."""
    return {
        "metadata": {
            "name": "pod",
            "namespace": "default",
            "uid": "uid",
            "annotations": {"hami.io/node-scheduler-policy": policy},
        },
        "spec": {
            "containers": [
                {"name": f"c{number}", "resources": {"limits": limits}}
                for number, limits in enumerate(containers)
            ]
        },
    }


def timed(
    call: Callable[[], object], runs: int, *, between: Callable[[], object] = int
) -> dict[str, float]:
    """p50 and p99 in milliseconds; what happens `between` the calls is not counted."""
    for _ in range(min(runs, 10)):
        call()
    times = []
    for _ in range(runs):
        between()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1000)
    p50, p99 = np.percentile(times, (50, 99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def model_answer(
    nodes: dict[NodeName, Any], asked: dict[str, Any]
) -> tuple[str | None, list[list[str]]]:
    """The node that the reference model chooses, and the cards per container."""
    containers, annotations = requests_of(asked), asked["metadata"]["annotations"]
    scores: dict[str, float] = {}
    found: dict[str, model.Slots] = {}
    for name, (node, cards) in nodes.items():
        slots, reason = model.on_node(node, cards, containers, annotations)
        if not reason:
            found[name] = slots
            own = vendor_score(node, cards, slots, annotations)
            scores[name] = float(node_score(cards)) + own
    chosen = model.choose(scores, annotations)
    if chosen is None:
        return None, []
    return chosen, [[each["card"]["id"] for each in picks] for _, picks in found[chosen]]


def slice_p50_ms(nodes: int) -> float:
    """Return the p50 of one decision for a slice that fits, on that many nodes."""
    held = cluster(KINDS["nvidia"], nodes, seed=nodes)
    view, names = held.view(VENDORS), tuple(held.nodes)
    request = pod_request(pod(nvidia(SLICES["fits"]), "binpack"), VENDORS)
    return timed(lambda: decide(request, view, candidates=names), 100)["p50_ms"]


def nvidia(containers: list[Limits]) -> list[Limits]:
    """With the whole names of the resources."""
    return [{f"nvidia.com/{name}": amount for name, amount in c.items()} for c in containers]


def measure(runs: int) -> Iterator[dict[str, Any]]:
    """One row per size, request and node policy."""
    for size in SIZES:
        held = cluster(KINDS["nvidia"], size, seed=size)
        for label, containers in SLICES.items():
            yield from compared(held, label, nvidia(containers), runs)
            yield fragmented(held, label, nvidia(containers), runs)
    for size in CHOOSER_SIZES:
        for label, (kind, limits) in CHOSEN.items():
            held = cluster(KINDS[kind], size, seed=size)
            yield from compared(held, label, [limits], max(runs // 20, 5))


def first_ms(call: Callable[[], object], view: ClusterView) -> float:
    """p50 of a decision on a shape of pod that never came before."""

    def forgetful() -> None:
        view.memory = Memory()
        call()

    return timed(forgetful, 5)["p50_ms"]


def fragmented(held: Cluster, label: str, containers: list[Limits], runs: int) -> dict[str, Any]:
    """Times of the node policy `fragmentation`, under a mix of the shapes benched here.

    Binpack decides in turn with it, so that both meet the same load of the machine.
    """
    view, names, versions = held.view(VENDORS), tuple(held.nodes), count(2)
    for asked in (*SLICES.values(), [{"gpu": "8", "gpucores": "100"}]):
        shape = shape_of(pod_request(pod(nvidia(asked), "fragmentation"), VENDORS))
        assert shape is not None
        view.usual.saw(shape)
    binpack, request = (
        pod_request(pod(containers, policy), VENDORS) for policy in ("binpack", "fragmentation")
    )

    def run() -> None:
        decide(request, view, candidates=names)

    beside: list[float] = []

    def before() -> None:
        start = time.perf_counter()
        decide(binpack, view, candidates=names)
        beside.append((time.perf_counter() - start) * 1000)
        touch(view, names[0], next(versions))

    times = timed(run, runs, between=before)
    row = {"nodes": len(names), "request": label, "policy": "fragmentation"} | times
    row |= {"first_ms": round(first_ms(run, view), 4), "model_ms": "", "times_faster": ""}
    return row | {"of_binpack": round(times["p50_ms"] / float(np.median(beside)), 3)}


def touch(view: ClusterView, node: NodeName, version: int) -> None:
    """One node changes, as it does when the decision before is written down."""
    usage, _ = view.cards(node)[0]
    view.apply(
        usage.device.uuid,
        slots=usage.used_slots,
        memory_mib=usage.used_memory_mib,
        core_percent=usage.used_core_percent,
        version=version,
    )


def compared(
    held: Cluster, label: str, containers: list[Limits], runs: int
) -> Iterator[dict[str, Any]]:
    """Times of the engine and of the model, which must choose the same node and cards."""
    view, nodes = held.view(VENDORS), held.model()
    names, versions = tuple(nodes), count(2)

    for policy in ("binpack", "spread"):
        asked = pod(containers, policy)
        request = pod_request(asked, VENDORS)
        placed = decide(request, view, candidates=names).placement
        start = time.perf_counter()
        expected = model_answer(nodes, asked)
        model_ms = (time.perf_counter() - start) * 1000
        cards = [[share.uuid for share in c.shares] for c in placed.containers] if placed else []
        if (placed.node if placed else None, cards) != expected:
            raise SystemExit(f"engine and model disagree on {label}, {policy}: {expected}")

        def run(request: PodRequest = request) -> None:
            decide(request, view, candidates=names)

        times = timed(run, runs, between=lambda: touch(view, names[0], next(versions)))
        row = {"nodes": len(names), "request": label, "policy": policy} | times
        yield row | {
            "first_ms": round(first_ms(run, view), 4),
            "model_ms": round(model_ms, 1),
            "times_faster": round(model_ms / times["p50_ms"], 1),
            "of_binpack": "",
        }


def growth(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How p50 grows from the smallest to the largest cluster, and what is over its budget.

    "fits nowhere" has no budget here: it makes the reason of every node.
    """
    for label in (*SLICES, *CHOSEN):
        for policy in ("binpack", "spread"):
            p50 = {
                row["nodes"]: row["p50_ms"]
                for row in rows
                if (row["request"], row["policy"]) == (label, policy)
            }
            times = round(p50[max(p50)] / p50[min(p50)], 1)
            line = f"{label}, {policy}: p50 x {times} from {min(p50)} to {max(p50)} nodes"
            budget = BUDGET_MS if label == "fits" else {}
            if label in CHOSEN:
                budget = {1000: CHOOSER_BUDGET_MS}
            yield line + "".join(
                f"; {size} nodes {p50[size]} ms of {most}" for size, most in budget.items()
            )


def beside_binpack(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the time that the node policy `fragmentation` takes, as a multiple of binpack's."""
    for row in rows:
        if row["of_binpack"]:
            budget = f" of {FRAGMENTATION_BUDGET}" if row["request"] == "fits" else ""
            label = f"{row['request']}, {row['nodes']} nodes"
            yield f"{label}: fragmentation takes x {row['of_binpack']:.2f}{budget} of binpack"


def machine() -> dict[str, Any]:
    """Describe the machine that the benchmark ran on."""
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
        "interpreter": os.path.realpath(sys.executable),
        "numpy": np.__version__,
    }


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    rows, where = list(measure(parser.parse_args().runs)), machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(f"8 NVIDIA cards and {PODS_PER_NODE} placed pods per node, all nodes are candidates\n")
    columns = list(rows[0])
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(f"{row[name]!s:>16}" for name in columns))
    print()
    print(*growth(rows), *beside_binpack(rows), sep="\n")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
