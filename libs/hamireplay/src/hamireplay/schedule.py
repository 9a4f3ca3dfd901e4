"""Compute the order and times of arrivals, and running times, from a trace.

The order is as in the published runs (hkust-adsl/kubernetes-scheduler-simulator): the trace is
shuffled by a seed, then tuned to a load. If the demand is too small, pods drawn with replacement
are appended, up to the draw that would pass the target by the share of ONE of its cards. If it is
too large, random pods are left out.

Times are made for a mean load, or are the pods' own. For a mean load the pods arrive in that order
at exponential gaps, and each runs as long as in the trace. The gaps are scaled so that with
unlimited room the pods would hold `mean_load` of the cards. The first two thirds of the pods only
fill the cluster, and only the last third is measured. A few pods that run for months have most of a
trace's card-hours, so the load still grows during the measurement; its mean is the requested load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import numpy.typing as npt
from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest

from hamireplay.churn import Stay, Window
from hamireplay.trace import Trace, TraceNode, TracePod, demand_milli

Floats = npt.NDArray[np.float64]

FOREVER = float("inf")
_FILLING = 2 / 3
"""Fraction of the arrivals before the measured window."""
_HALVINGS = 80


def arrivals(trace: Trace, seed: int, *, load: float, card_memory_mib: int = 0) -> list[TracePod]:
    """Shuffle the trace's pods up to `load` (1.3: 130 % of the cards are requested)."""
    random = np.random.default_rng(seed)
    by_name = sorted(trace.pods, key=lambda pod: pod.name)
    order = [by_name[at] for at in random.permutation(len(by_name)).tolist()]
    target = load * trace.capacity_milli
    demand = sum(demand_milli(pod, card_memory_mib) for pod in order)
    if demand > target:
        left_out = set[int]()
        for at in random.permutation(len(order)).tolist():
            if demand <= target:
                break
            left_out.add(at)
            demand -= demand_milli(order[at], card_memory_mib)
        return [pod for at, pod in enumerate(order) if at not in left_out]
    while True:
        drawn = by_name[int(random.integers(len(by_name)))]
        whole = demand_milli(drawn, card_memory_mib)
        if demand + whole / max(drawn.cards, 1) > target:
            return order
        order.append(drawn)
        demand += whole


def tie_order(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """Rename the nodes in random order, because the first by name wins a tie.

    The names are drawn independently of the arrivals: all policies of a seed get the same of both.
    """
    random = np.random.default_rng([seed, 1])
    width = len(str(len(nodes)))
    by_name = sorted(nodes, key=lambda node: node.name)
    return [
        replace(node, name=NodeName(f"{number:0{width}d}-{node.name}"))
        for node, number in zip(by_name, random.permutation(len(nodes)).tolist(), strict=True)
    ]


def by_load(
    order: Sequence[TracePod],
    seed: int,
    *,
    mean_load: float,
    capacity_milli: int,
    card_memory_mib: int = 0,
    patience_s: float = FOREVER,
) -> tuple[list[Stay], Window]:
    """Assign times of arrival for a mean load; return also the measured window.

    Raises: InvalidRequest if the trace has no lifetimes, or too few pods for the load.
    """
    runs = np.array([_runs_s(pod) for pod in order])
    demand = np.array([demand_milli(pod, card_memory_mib) for pod in order], np.float64)
    gaps = np.random.default_rng([seed, 2]).exponential(size=len(order))
    times = gaps.cumsum() - gaps[:1]
    first = int(len(order) * _FILLING)
    low, high = 1e-6, 1e9
    for _ in range(_HALVINGS):
        scale = (low * high) ** 0.5
        if _offered_milli(times * scale, runs, demand, first) > mean_load * capacity_milli:
            low = scale
        else:
            high = scale
    reached = _offered_milli(times * high, runs, demand, first) / capacity_milli
    if not 0.98 * mean_load <= reached <= 1.02 * mean_load:
        raise InvalidRequest(
            f"--mean-load {mean_load:.0%} can't be reached with {len(order)} pods: "
            f"{reached:.0%} is the nearest; use another --load (percent of the cards that all of "
            "them ask for)"
        )
    times = times * high
    stays = [
        Stay(pod, at, runs_s, patience_s)
        for pod, at, runs_s in zip(order, times.tolist(), runs.tolist(), strict=True)
    ]
    return stays, Window(float(times[first]), float(times[-1]))


def as_it_was(
    pods: Iterable[TracePod], until_s: float | None = None, patience_s: float = FOREVER
) -> tuple[list[Stay], Window]:
    """Use the pods' recorded times; unknown running times become the median.

    Raises: InvalidRequest if a pod has no time of arrival.
    """
    ordered = sorted(pods, key=lambda pod: (_arrives_s(pod), pod.name))
    if not ordered:
        raise InvalidRequest("no pod has arrived: there is nothing to replay")
    known = [runs for pod in ordered if (runs := pod.runs_s) is not None and runs < FOREVER]
    usual = median(known) if known else FOREVER
    stays = [
        Stay(
            pod,
            _arrives_s(pod),
            usual if pod.runs_s is None else pod.runs_s,
            patience_s if pod.gone_s is None else min(pod.gone_s - _arrives_s(pod), patience_s),
        )
        for pod in ordered
    ]
    begins = stays[0].arrives_s
    ends = stays[-1].arrives_s if until_s is None else until_s
    return stays, Window(begins, max(ends, begins + 1.0))


def offered_percent(
    stays: Sequence[Stay], window: Window, *, capacity_milli: int, card_memory_mib: int = 0
) -> float:
    """Return the percent of the cards that pods would hold if each were placed on arrival."""
    held = sum(
        demand_milli(stay.pod, card_memory_mib)
        * max(
            min(stay.arrives_s + stay.runs_s, window.ends_s) - max(stay.arrives_s, window.begins_s),
            0.0,
        )
        for stay in stays
    )
    return 100 * held / window.length_s / capacity_milli


def _offered_milli(times: Floats, runs: Floats, demand: Floats, first: int) -> float:
    begins, ends = times[first], times[-1]
    held = np.minimum(times + runs, ends) - np.maximum(times, begins)
    return float((demand * np.maximum(held, 0.0)).sum() / max(ends - begins, 1e-300))


def _arrives_s(pod: TracePod) -> float:
    if pod.arrives_s is None:
        raise InvalidRequest(
            f"pod {clip(pod.name)}: creation_time is absent: expected seconds of every pod"
        )
    return pod.arrives_s


def _runs_s(pod: TracePod) -> float:
    _arrives_s(pod)
    return FOREVER if pod.runs_s is None else pod.runs_s
