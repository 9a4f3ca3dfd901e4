"""When pods arrive and how long they run: by a mean load, or as they really did.

By a mean load: the pods of `arrivals`, in the random order of a seed, come at exponential gaps, and
each runs as long as it did in the trace. The gaps are scaled so that with room for everybody
the pods would hold `mean_load` of the cards. The first two thirds of the pods only fill the
cluster, and only the last third is counted. Few pods of a trace that run for months have most of
its card-hours, so the load still grows while it is counted; its mean is what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest
from hamicommon.simulation.replay.churn import Stay, Window
from hamicommon.simulation.replay.trace import TracePod, demand_milli

Floats = npt.NDArray[np.float64]

FOREVER = float("inf")
_FILLING = 2 / 3
"""Part of the arrivals before the window."""
_HALVINGS = 80


def by_load(
    order: Sequence[TracePod],
    seed: int,
    *,
    mean_load: float,
    capacity_milli: int,
    card_memory_mib: int = 0,
    patience_s: float = FOREVER,
) -> tuple[list[Stay], Window]:
    """The arrivals with their times, and what of them is counted.

    Raises: InvalidRequest when the trace has no lifetimes, or too few pods for the load.
    """
    runs = np.array([_runs_s(pod) for pod in order])
    demand = np.array([demand_milli(pod, card_memory_mib) for pod in order], np.float64)
    gaps = np.random.default_rng([seed, 2]).exponential(size=len(order))
    times = gaps.cumsum() - gaps[:1]
    first = int(len(order) * _FILLING)
    low, high = 1e-6, 1e9
    for _ in range(_HALVINGS):
        scale = (low * high) ** 0.5
        if _offered(times * scale, runs, demand, first) > mean_load * capacity_milli:
            low = scale
        else:
            high = scale
    reached = _offered(times * high, runs, demand, first) / capacity_milli
    if not 0.98 * mean_load <= reached <= 1.02 * mean_load:
        raise InvalidRequest(
            f"--mean-load {mean_load:.0%} is not to be had of {len(order)} pods that come and go: "
            f"{reached:.0%} is the nearest; another --load (percent of the cards that all of them "
            "ask for) is wanted"
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
    """The pods at their own times; one that ran for a time not known runs as the median did.

    Raises: InvalidRequest when a pod has no time of arrival.
    """
    ordered = sorted(pods, key=lambda pod: (_arrives_s(pod), pod.name))
    if not ordered:
        raise InvalidRequest("no pod has arrived: nothing is to be replayed")
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
    ends = max(stays[-1].arrives_s, begins + 1.0) if until_s is None else until_s
    return stays, Window(begins, max(ends, begins + 1.0))


def offered(
    stays: Sequence[Stay], window: Window, *, capacity_milli: int, card_memory_mib: int = 0
) -> float:
    """Percent of the cards that the pods would hold in the window, each placed as it came."""
    held = sum(
        demand_milli(stay.pod, card_memory_mib)
        * max(
            min(stay.arrives_s + stay.runs_s, window.ends_s) - max(stay.arrives_s, window.begins_s),
            0.0,
        )
        for stay in stays
    )
    return 100 * held / window.length_s / capacity_milli


def _offered(times: Floats, runs: Floats, demand: Floats, first: int) -> float:
    begins, ends = times[first], times[-1]
    held = np.minimum(times + runs, ends) - np.maximum(times, begins)
    return float((demand * np.maximum(held, 0.0)).sum() / max(ends - begins, 1e-300))


def _arrives_s(pod: TracePod) -> float:
    if pod.arrives_s is None:
        raise InvalidRequest(
            f"pod {clip(pod.name)}: creation_time is absent: seconds are wanted of every pod"
        )
    return pod.arrives_s


def _runs_s(pod: TracePod) -> float:
    _arrives_s(pod)
    return FOREVER if pod.runs_s is None else pod.runs_s
