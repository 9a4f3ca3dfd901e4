"""/prioritize-without-cards without HTTP: from the bytes of the question to those of the answer.

Prints p50 and p99 of the processor's time, which a busy machine changes less than the time that
passes, on clusters of up to 5000 nodes, all of which are candidates: `known`, where one node has
changed since a pod that asks for as much CPU came, and `new`, for an amount of CPU that never came.
kube-scheduler sends fewer names by default (420 of 1000 nodes, 500 of 5000).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import count

import numpy as np
import orjson
from hami_scheduler.extender.host_scoring import HostScoring
from hami_scheduler.extender.protocol import HostPriorities, parse_extender_args
from hami_scheduler.metrics import SchedulerInstruments
from hamicommon.domain.requests import Policy
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.vendors.pod_request import PodRequests, pod_request

from bench.clusters import KINDS, cluster
from bench.engine import SLICES, VENDORS, machine, nvidia, pod
from bench.filter.objects import pod_object

SIZES = (100, 1000, 5000)
NODE_CPU_MILLI = 128_000

Times = dict[str, float]


def measure(nodes: int, runs: int) -> dict[str, Times]:
    """Times in milliseconds, by kind of question."""
    held = cluster(KINDS["nvidia"], nodes, seed=nodes)
    view = held.view(VENDORS)
    for number, name in enumerate(held.nodes):
        view.set_free_cpu(name, number * 997 % NODE_CPU_MILLI)
    for asked in (*SLICES.values(), [{"gpu": "8", "gpucores": "100"}]):
        shape = shape_of(pod_request(pod(nvidia(asked), "fragmentation"), VENDORS))
        assert shape is not None
        view.usual.saw(shape)
    hosts = HostScoring(
        cluster=view,
        requests=PodRequests(vendors=VENDORS, defaults=Policy()),
        instruments=SchedulerInstruments(),
    )
    names, amounts = tuple(held.nodes), count(1)

    def body(cpu_milli: int) -> bytes:
        asking = pod_object("plain", memory_mib=0, core_percent=0)
        asking["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{cpu_milli}m"}}
        return orjson.dumps({"pod": asking, "nodes": None, "nodenames": names})

    def answer(asked: bytes) -> bytes:
        return HostPriorities(scores=hosts.scores(parse_extender_args(asked))).to_json()

    def change() -> None:
        view.set_free_cpu(names[0], next(amounts))

    known, new = body(4000), (body(8000 + more) for more in count())
    return {
        "known": timed(lambda: answer(known), runs, between=change),
        "new": timed(lambda: answer(next(new)), runs // 10, between=change),
    }


def timed(call: Callable[[], object], runs: int, *, between: Callable[[], object]) -> Times:
    """p50 and p99 of the thread's milliseconds; what happens `between` the calls is not counted."""
    spent = []
    for _ in range(runs):
        between()
        start = time.thread_time()
        call()
        spent.append((time.thread_time() - start) * 1000)
    p50, p99 = np.percentile(spent, (50, 99))
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2)}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for nodes in SIZES:
        for kind, times in measure(nodes, runs).items():
            print(f"{nodes:>5} nodes, {kind:>5}: p50 {times['p50']} ms, p99 {times['p99']} ms")


if __name__ == "__main__":
    main()
