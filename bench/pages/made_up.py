"""A made-up cluster's history: grants that never over-commit a card, and what their pods used.

100 nodes with 8 cards of 80 GiB, 20 namespaces; pods come evenly, stay a lognormal while (half of
them under an hour, some a day) and have a slice of a tenth of a card. Everything follows from the
seed and from `until`, so two runs ask the same questions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NODES = 100
CARDS_PER_NODE = 8
SLOTS = 10
CARD_MIB = 81_920
SLICE_MIB = 4096
SLICE_CORES = 10
NAMESPACES = 20
LONGEST_S = 86_400.0
MEDIAN_S = 3000.0
SPREAD = 1.2
TICK_S = 60
"""Seconds between the samples of a pod."""
REASONS = ("CardInsufficientMemory", "CardInsufficientCore", "CardNotHealth", "CardTypeMismatch")


@dataclass(frozen=True, slots=True)
class Grant:
    """One pod's grant of one slice; times in seconds of the epoch."""

    number: int
    id: str
    pod_uid: str
    namespace: str
    pod_name: str
    card: int
    reserved: float
    ended: float | None

    @property
    def node(self) -> str:
        """Return the node that it ran on."""
        return node_name(self.card // CARDS_PER_NODE)

    @property
    def uuid(self) -> str:
        """Return the uuid of the card that it ran on."""
        return card_uuid(self.card)


def node_name(number: int) -> str:
    """`node-007`."""
    return f"node-{number:03}"


def card_uuid(number: int) -> str:
    """Return a uuid that looks like NVIDIA's."""
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def grants(count: int, *, days: float, until: datetime, seed: int = 1) -> Iterator[Grant]:
    """In the order of their reservation; those that would end after `until` are live."""
    chance = random.Random(seed)
    end_s = until.timestamp()
    step_s = days * 86_400 / count
    held = [0] * (NODES * CARDS_PER_NODE)
    ends: list[tuple[float, int]] = []
    for number in range(count):
        at = end_s - (count - number) * step_s
        while ends and ends[0][0] <= at:
            held[heapq.heappop(ends)[1]] -= 1
        card = chance.randrange(len(held))
        while held[card] == SLOTS:
            card = (card + 1) % len(held)
        held[card] += 1
        stays_s = min(LONGEST_S, max(5.0, chance.lognormvariate(0, SPREAD) * MEDIAN_S))
        heapq.heappush(ends, (at + stays_s, card))
        team = min(int(chance.paretovariate(1.2)), NAMESPACES)
        yield Grant(
            number=number,
            id=f"{chance.getrandbits(128):032x}",
            pod_uid=f"{chance.getrandbits(128):032x}",
            namespace=f"team-{team:02}",
            pod_name=f"job-{number:07}",
            card=card,
            reserved=at,
            ended=at + stays_s if at + stays_s < end_s else None,
        )


def ticks(count: int, per_tick: int, until: datetime) -> list[float]:
    """When samples are taken, oldest first."""
    return [until.timestamp() - TICK_S * n for n in range(-(-count // per_tick), 0, -1)]


def stamp(seconds: float) -> str:
    """Return the moment as Postgres reads it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def day_span(first_s: float, last: datetime) -> list[datetime]:
    """Midnights (UTC) of the days from `first_s` to `last`."""
    day = datetime.fromtimestamp(first_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = []
    while day <= last:
        days.append(day)
        day += timedelta(days=1)
    return days
