"""Scripts: actions on the system and their times, drawn from a seed, and shortened on failure.

A script is data: actions with their times and arguments, so that removing one does not change the
others. The actors draw their own decisions from separate sources.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

WIRES = ("ledger", "redis", "api", "bus", "watch", "kubelet")
KINDS = {
    "arrive": 42,
    "delete": 11,
    "force_delete": 6,
    "finish": 7,
    "restart": 5,
    "weather": 10,
    "bus_away": 2,
    "locks_lost": 2,
    "clock_jump": 1,
    "kill_replica": 4,
    "stop_replica": 4,
    "kill_agent": 3,
    "sick_card": 2,
    "node_lost": 1,
    "unknown": 3,
}
TEMPLATE = "template"
"""A seed that begins so is of a history whose pods are all alike."""
Slice = tuple[int, int, int]
"""(cards, MiB of each, percent of each) that one container asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that is done from outside."""

    at: float
    kind: str
    number: int
    pick: int = 0
    """Which pod, node or replica, counted round."""
    target: str = ""
    how: str = ""
    share: float = 0.0
    seconds: float = 0.0
    inits: tuple[Slice, ...] = ()
    apps: tuple[Slice, ...] = ()

    def __str__(self) -> str:
        shown = [f"{self.kind} {self.number}"]
        shown += [
            f"{name}={getattr(self, name)}"
            for name in ("pick", "target", "how", "share", "seconds", "inits", "apps")
            if getattr(self, name)
        ]
        return " ".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Cluster with the actions to be carried out on it."""

    seed: str
    nodes: tuple[str, ...]
    cards: int
    """Number of cards of each node."""
    replicas: int
    orderly: bool
    """Kubelets admit in order and follow the agent's preference, as those without bad luck do."""
    quotas: dict[str, int] = field(default_factory=dict, hash=False)
    """MiB by namespace."""
    actions: tuple[Action, ...]


def scenario(seed: str, *, actions: int = 60) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    alike = (1, random.Random(f"{seed} {TEMPLATE}").choice((2500, 4000, 6000)), 10)
    return Scenario(
        seed=seed,
        nodes=tuple(f"n{number}" for number in range(rng.choice((1, 2, 2, 3)))),
        cards=rng.choice((1, 2, 2, 3)),
        replicas=rng.choice((1, 2, 2, 3)),
        orderly=rng.random() < 0.5,
        quotas={"tight": 12_000},
        actions=tuple(
            replace(action, inits=(), apps=(alike,)) if seed.startswith(TEMPLATE) else action
            for action in _actions(rng, actions)
        ),
    )


def _actions(rng: random.Random, count: int) -> Iterator[Action]:
    at = 0.0
    for number in range(count):
        at += rng.expovariate(1.0) * rng.choice((0.05, 0.3, 1.0))
        [kind] = rng.choices(list(KINDS), weights=list(KINDS.values()))
        yield Action(
            at=round(at, 3),
            kind=kind,
            number=number,
            pick=rng.randrange(1000),
            target=rng.choice(WIRES if kind == "weather" else ("default", "default", "tight")),
            how=rng.choice(("refused", "lost", "late", "twice", "any", "any")),
            share=rng.choice((0.05, 0.2, 0.5)),
            seconds=_seconds(rng, kind),
            inits=tuple(_slices(rng, rng.choice((0, 0, 0, 1)))),
            apps=tuple(_slices(rng, rng.choice((1, 1, 1, 2)))),
        )


def _seconds(rng: random.Random, kind: str) -> float:
    if kind == "clock_jump":
        return float(rng.choice((-20, -2, 5, 45, 90)))
    return round(rng.choice((0.5, 2.0, 8.0, 40.0)) * rng.random(), 3)


def _slices(rng: random.Random, count: int) -> Iterator[Slice]:
    for _ in range(count):
        yield (
            rng.choice((1, 1, 1, 2)),
            rng.choice((500, 1000, 2500, 4000, 6000, 10_000)),
            rng.choice((0, 10, 30, 60, 100)),
        )
