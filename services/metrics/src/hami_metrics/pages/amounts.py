"""Format amounts, ages and times for people; unknown is `?`, never 0. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions.question import moment as read_moment

UNKNOWN = "?"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def gib(mib: float | None) -> str:
    """Format MiB as GiB: `14 GiB`, `38.5 GiB`, or `512 MiB` below one."""
    if mib is None:
        return UNKNOWN
    if 0 < mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{bare_gib(mib)} GiB"


def bare_gib(mib: float | None) -> str:
    """Format only the number of `gib`: `38.5`."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.1f}".removesuffix(".0")


def percent(value: float | None) -> str:
    """Format `41 %`."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def granted_cores(value: int, *, held: bool = True) -> str:
    """Format `30 %`, or `any` for slices without a share, which may use all idle cores."""
    return "any" if held and not value else f"{value} %"


def count(value: int | None) -> str:
    """Format a number with thin spaces between thousands: `12 345`."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", "\u2009")


def age(since: datetime | None, now: datetime) -> str:
    """Format a time since: `3 s`, `41 min`, `2 h 10 min`, `41 d`; a future time is `0 s`."""
    return UNKNOWN if since is None else span((now - since).total_seconds())


def span(seconds: float) -> str:
    """Format a duration with its two largest units."""
    left = max(0, int(seconds))
    for number, (size, unit) in enumerate(_STEPS):
        if left >= size:
            whole, rest = divmod(left, size)
            if unit == "d" and whole >= 10:
                return f"{whole} d"
            if number + 1 < len(_STEPS):
                lower, lower_unit = _STEPS[number + 1]
                if rest >= lower:
                    return f"{whole} {unit} {rest // lower} {lower_unit}"
            return f"{whole} {unit}"
    return f"{left} s"


def milliseconds(ms: float) -> str:
    """Format `40.0 ms` or `2.31 s`."""
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"


def length(ms: float) -> str:
    """Format a duration with suitable precision: `573.2 ms`, `41 min`."""
    return milliseconds(ms) if ms < 60_000 else span(ms / 1000)


def moment(at: datetime | None) -> str:
    """Format a time in UTC, to the second."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: datetime | None) -> str:
    """Format the time of day in UTC."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%H:%M:%S}"


def machine(at: datetime) -> str:
    """Format a time as RFC 3339 in UTC for `?at=`; whole seconds without fraction."""
    exact = at.astimezone(UTC)
    whole = exact.microsecond == 0
    return exact.strftime("%Y-%m-%dT%H:%M:%SZ" if whole else "%Y-%m-%dT%H:%M:%S.%fZ")


def share(part: float | None, whole: float) -> int | None:
    """Return whole percent, 0 to 100, at least 1 for any part; None is unknown."""
    if part is None or whole <= 0:
        return None
    if part <= 0:
        return 0
    return max(1, min(100, round(100 * part / whole)))


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


CLOCK_SKEW = timedelta(seconds=5)
"""Difference of clocks up to which a future time is accepted."""
MAX_MOMENT_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMoment:
    """Time that a page shows; `at` None: now, with live updates."""

    at: datetime | None
    now: datetime

    @property
    def past(self) -> bool:
        """Whether the page shows the past."""
        return self.at is not None

    @property
    def shown(self) -> datetime:
        """Time that is shown."""
        return self.at or self.now

    @property
    def query(self) -> str:
        """Query string that keeps links at that time."""
        return "" if self.at is None else f"?at={machine(self.at)}"


def page_moment(text: str, now: datetime) -> PageMoment:
    """Parse `?at=` of an address; without a zone it is UTC. Raises: InvalidRequest."""
    if not text:
        return PageMoment(at=None, now=now)
    short = len(text) <= MAX_MOMENT_CHARACTERS
    at = read_moment(text.strip(), now) if short else None
    if at is None:
        raise InvalidRequest(
            f"at: {text[:MAX_MOMENT_CHARACTERS]!r} is not a time; write one like"
            " 2026-11-20T14:05Z, 14:05 or -2m"
        )
    if at.year < 2000:
        raise InvalidRequest(f"at: {machine(at)} is before any record; choose a later moment")
    if at > now + CLOCK_SKEW:
        raise InvalidRequest(f"at: {machine(at)} is in the future; leave `at` out for now")
    return PageMoment(at=at, now=now)
