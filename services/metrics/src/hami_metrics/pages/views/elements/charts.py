"""Series of a chart as the table that it is drawn from: the same numbers for everybody. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hami_metrics.pages.domain.details import UsePoint
from hami_metrics.pages.views.elements.amounts import UNKNOWN

MOST_SERIES = 12
MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UseChart:
    """One axis of time and the values of each series there; None is a gap."""

    title: str
    unit: str
    names: Sequence[str]
    rows: Sequence[tuple[datetime, Sequence[float | None]]]

    @property
    def empty(self) -> bool:
        """Nothing was measured."""
        return not self.rows

    @property
    def only(self) -> str:
        """The one point there is, as a sentence without its time; empty: there are more."""
        if len(self.rows) != 1:
            return ""
        values = zip(self.names, self.rows[0][1], strict=True)
        return ", ".join(
            f"{name} {UNKNOWN if value is None else f'{value:g} {self.unit}'}"
            for name, value in values
        )

    @property
    def over_days(self) -> bool:
        """A time of day alone does not name a point."""
        return bool(self.rows) and self.rows[0][0].date() != self.rows[-1][0].date()


def use_chart(
    title: str,
    unit: str,
    points: Iterable[UsePoint],
    names: Mapping[str, str],
    value: Callable[[UsePoint], float | None],
) -> UseChart:
    """One series per card; `names`: uuid to what the legend shows, in order."""
    shown = list(names)[:MOST_SERIES]
    at: dict[datetime, dict[str, float | None]] = {}
    for point in points:
        if point.device_uuid in shown:
            row = at.setdefault(point.at, {})
            # Containers of one pod on one card add up; one that is unknown makes the sum unknown.
            before, new = row.get(point.device_uuid, 0.0), value(point)
            row[point.device_uuid] = None if before is None or new is None else before + new
    rows = [(when, [row.get(uuid) for uuid in shown]) for when, row in sorted(at.items())]
    return UseChart(
        title=title,
        unit=unit,
        names=[names[uuid] for uuid in shown],
        rows=rows[-MOST_POINTS:],
    )


def memory_gib(point: UsePoint) -> float | None:
    """Mean memory in GiB."""
    return None if point.memory_mib is None else round(point.memory_mib / 1024, 3)


def cores(point: UsePoint) -> float | None:
    """Mean of the cores, percent of the card."""
    return None if point.core_percent is None else round(point.core_percent, 1)
