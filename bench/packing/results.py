"""Results of replays, run by run: docs/packing.json, by trace, policy and order of arrivals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

KEPT = Path(__file__).parents[2] / "docs" / "packing.json"
FIRST, LAST = 80, 130
"""Percent of the cards asked for; the policies do not part before."""

Key = tuple[str, str, int]
"""Trace, policy, order of arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Pods that arrive and stay."""

    in_use: tuple[float, ...]
    """Percent of the cards, at every percent asked for from `FIRST` to `LAST`."""
    refused: Mapping[str, int]
    """Pods, by kind."""

    def at(self, load: int) -> float:
        """Percent in use when so much was asked for."""
        return self.in_use[load - FIRST]


@dataclass(slots=True, kw_only=True)
class Results:
    """All runs that are known."""

    runs: dict[Key, Run] = field(default_factory=dict)

    def orders(self, trace: str, policy: str) -> list[int]:
        """The orders in which the trace's pods arrived, ascending."""
        return sorted(seed for at, name, seed in self.runs if (at, name) == (trace, policy))

    def in_use(self, trace: str, policy: str, load: int) -> str:
        """Mean and deviation of the percent in use."""
        return with_deviation(run.at(load) for run in self.of(trace, policy))

    def of(self, trace: str, policy: str, orders: Iterable[int] | None = None) -> list[Run]:
        """Runs in ascending order of their seeds."""
        chosen = self.orders(trace, policy) if orders is None else orders
        return [self.runs[trace, policy, seed] for seed in chosen]

    def leads(self, trace: str, ours: str, theirs: str) -> dict[int, list[float]]:
        """By order both met: points that ours has more in use, at each percent asked for."""
        both = sorted({*self.orders(trace, ours)} & {*self.orders(trace, theirs)})
        pairs = (
            (self.runs[trace, ours, seed].in_use, self.runs[trace, theirs, seed].in_use)
            for seed in both
        )
        return {
            seed: [a - b for a, b in zip(mine, other, strict=True)]
            for seed, (mine, other) in zip(both, pairs, strict=True)
        }

    def add(self, others: Results) -> None:
        """All runs of the others, in place of those that are known."""
        self.runs |= others.runs

    def take(self, trace: str, output: Mapping[str, Any]) -> None:
        """Add the output of `hamictl replay -o json` for a trace."""
        for policy, found in output["policies"].items():
            for run in found["runs"]:
                by_load = {int(load): value for load, value in run["allocated"].items()}
                self.runs[trace, policy, run["seed"]] = Run(
                    in_use=tuple(round(value, 3) for value in _every(by_load)),
                    refused=run["failed"],
                )


def _every(by_load: Mapping[int, float]) -> Iterator[float]:
    """Values by percent; one that a large pod skips has the value before it."""
    for load in range(FIRST, LAST + 1):
        yield by_load[max((at for at in by_load if at <= load), default=min(by_load))]


def mean(values: Iterable[float]) -> float:
    """Return the mean of one or more values."""
    return fmean(values)


def with_deviation(values: Iterable[float]) -> str:
    """Mean and deviation of the population, as the published ones are."""
    known = list(values)
    spread = f" ± {pstdev(known):.2f}" if len(known) > 1 else ""
    return f"{fmean(known):.2f}{spread}"


def read(path: Path = KEPT) -> Results:
    """Read the results that are committed."""
    kept = json.loads(path.read_text())
    runs = {
        (trace, policy, int(seed)): Run(in_use=tuple(in_use), refused=refused)
        for trace, policy, seed, refused, in_use in kept["runs"]
    }
    return Results(runs=runs)


def write(results: Results, path: Path = KEPT) -> None:
    """One line per run, so that a change shows which runs are others."""
    runs = [
        json.dumps([*key, run.refused, run.in_use]) for key, run in sorted(results.runs.items())
    ]
    path.write_text('{"runs": [\n' + ",\n".join(runs) + "\n]}\n")
