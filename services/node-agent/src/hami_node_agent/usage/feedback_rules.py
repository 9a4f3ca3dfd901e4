"""Rules of the feedback loop: which containers wait, and whose core limits hold (protocol 6.4).

Input: the two switches and the priority of every container that shares cards on this node. Output:
the switches to write. A lower number is a higher priority. A container that launched a kernel
within two rounds is active on all its cards. A container waits (recent_kernel -1) while one of
higher priority is active on one of its cards. Its core limit holds while it waits, or while two
containers of its priority are active there; otherwise the limit is lifted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hami_node_agent.grants.limits_file import CoreFeedback

INTERVAL_S = 5.0
BLOCK_S = 20
"""Validity of a block in seconds: three rounds may fail; libvgpu accepts at most 30 s."""
WAITING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingContainer:
    """Container as the feedback loop sees it."""

    name: str
    """Name of its folder."""
    cards: frozenset[str]
    priority: int
    recent_kernel: int
    """Number that launches set to 2 and that is counted down here; below 0: it waits."""
    utilization_switch: int
    """Whether the core limit is in force; 0: it is lifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Changes of the switches in a container's region; None: unchanged."""

    name: str
    recent_kernel: int | None = None
    utilization_switch: int | None = None


def decide(containers: Iterable[SharingContainer]) -> list[Switches]:
    """Return the changes of one round, by name."""
    ordered = sorted(containers, key=lambda one: one.name)
    counted = {one.name: one.recent_kernel - (one.recent_kernel > 0) for one in ordered}
    active: dict[str, Counter[int]] = {}
    for one in ordered:
        # A negative priority takes part in nothing but its own waiting, as in HAMi.
        if counted[one.name] > 0 and one.priority >= 0:
            for card in one.cards:
                active.setdefault(card, Counter())[one.priority] += 1
    changes = (_switches(one, counted[one.name], active) for one in ordered)
    return [switches for switches in changes if switches is not None]


def core_feedback(
    one: SharingContainer, switches: Switches | None, *, now_s: float
) -> CoreFeedback:
    """Return a container's feedback after a round."""
    recent, switch = one.recent_kernel, one.utilization_switch
    if switches is not None:
        recent = recent if switches.recent_kernel is None else switches.recent_kernel
        switch = switch if switches.utilization_switch is None else switches.utilization_switch
    return CoreFeedback(
        relaxed=switch == 0, waits_until_s=int(now_s) + BLOCK_S if recent < 0 else 0
    )


def _switches(
    one: SharingContainer, recent: int, active: dict[str, Counter[int]]
) -> Switches | None:
    here = [active[card] for card in one.cards if card in active]
    must_wait = any(priority < one.priority for counts in here for priority in counts)
    among_equals = any(counts[one.priority] > 1 for counts in here)
    if must_wait and recent >= 0:
        recent = WAITING
    elif not must_wait and recent < 0:
        recent = 0
    switch = int(must_wait or among_equals)
    if (recent, switch) == (one.recent_kernel, one.utilization_switch):
        return None
    return Switches(
        name=one.name,
        recent_kernel=None if recent == one.recent_kernel else recent,
        utilization_switch=None if switch == one.utilization_switch else switch,
    )
