"""Score how closely two cards are connected (protocol 5.6), for topology-aware placement.

In: where the two meet by the driver's report, and their NVLinks. Out: HAMi's score of the pair,
more is nearer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from hamicommon.domain.ids import GpuUuid

MAX_NVLINKS = 18
SCORE_PER_NVLINK = 100


class Meeting(IntEnum):
    """Level at which two cards are connected; the values are NVML's."""

    SAME_BOARD = 0
    SINGLE_SWITCH = 10
    SEVERAL_SWITCHES = 20
    HOST_BRIDGE = 30
    SAME_CPU = 40
    ACROSS_CPUS = 50


_SCORES = {
    Meeting.SAME_BOARD: 60,
    Meeting.SINGLE_SWITCH: 50,
    Meeting.SEVERAL_SWITCHES: 40,
    Meeting.HOST_BRIDGE: 30,
    Meeting.SAME_CPU: 20,
    Meeting.ACROSS_CPUS: 10,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLinks:
    """Links of one card to others."""

    uuid: GpuUuid
    meetings: Mapping[GpuUuid, int]
    """Connection levels by other card, as far as the driver knows them."""
    nvlinks: Mapping[GpuUuid, int]
    """Number of enabled direct NVLinks by other card."""
    switch_links: int = 0
    """Number of enabled links to an NVSwitch, which connects all cards with such links."""


def pair_scores(cards: Iterable[CardLinks]) -> dict[GpuUuid, dict[GpuUuid, int]]:
    """Return the score of every pair, in the order given."""
    ordered = tuple(cards)
    return {
        one.uuid: {other.uuid: _score(one, other) for other in ordered if other is not one}
        for one in ordered
    }


def contradictions(cards: Iterable[CardLinks]) -> tuple[tuple[GpuUuid, GpuUuid], ...]:
    """Return pairs of cards that report different numbers of NVLinks to each other.

    A link that is down at one end, or a driver that errs: jobs over both cards run slowly.
    """
    ordered = tuple(cards)
    return tuple(
        (one.uuid, other.uuid)
        for place, one in enumerate(ordered)
        for other in ordered[place + 1 :]
        if _nvlinks(one, other) != _nvlinks(other, one)
    )


def _score(one: CardLinks, other: CardLinks) -> int:
    there, back = _nvlinks(one, other), _nvlinks(other, one)
    if there != back:
        # The driver contradicts itself: HAMi trusts nothing of such a pair.
        return 0
    near = _SCORES.get(Meeting(one.meetings[other.uuid]), 0) if _is_known(one, other) else 0
    return near + (SCORE_PER_NVLINK * there if there <= MAX_NVLINKS else 0)


def _is_known(one: CardLinks, other: CardLinks) -> bool:
    return one.meetings.get(other.uuid) in set(Meeting)


def _nvlinks(one: CardLinks, other: CardLinks) -> int:
    straight = one.nvlinks.get(other.uuid, 0)
    return straight or min(one.switch_links, other.switch_links)
