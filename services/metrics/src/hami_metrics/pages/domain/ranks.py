"""How usual a length of time is among others of its kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hamicommon.telemetry.waterfall import FEWEST_COMPARED


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHour:
    """What was recorded in the hour before, of all pods."""

    phases_ms: Sequence[Mapping[str, float]] = ()
    """Of each decision."""
    states_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By state of a grant: how long each was in it."""

    def of_phase(self, name: str) -> list[float]:
        """What that phase took of each decision that has it."""
        return [phases[name] for phases in self.phases_ms if name in phases]


def rank(length: float, others: Sequence[float]) -> int | None:
    """Percent of `others` that took no longer, 0 to 100; None: too few to compare with."""
    if len(others) < FEWEST_COMPARED:
        return None
    return round(100 * sum(each <= length for each in others) / len(others))
