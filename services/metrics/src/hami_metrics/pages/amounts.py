"""Amounts, ages, moments and reasons as people read them; unknown is `?`, never 0. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions.question import moment as read_moment

UNKNOWN = "?"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def gib(mib: float | None) -> str:
    """Write MiB as GiB with one decimal if any: `14 GiB`, `38.5 GiB`, `512 MiB` below one."""
    if mib is None:
        return UNKNOWN
    if 0 < mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{bare_gib(mib)} GiB"


def bare_gib(mib: float | None) -> str:
    """Write only the number of `gib`: `38.5`."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.1f}".removesuffix(".0")


def percent(value: float | None) -> str:
    """Write `41 %`."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def granted_cores(value: int, *, held: bool = True) -> str:
    """Write `30 %`, or `any` for slices without a share, which may use all idle cores."""
    return "any" if held and not value else f"{value} %"


def count(value: int | None) -> str:
    """Write thin spaces between thousands: `12 345`."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", "\u2009")


def age(since: datetime | None, now: datetime) -> str:
    """Write `3 s`, `41 min`, `2 h 10 min`, `41 d`; a moment ahead of ours is `0 s`."""
    return UNKNOWN if since is None else span((now - since).total_seconds())


def span(seconds: float) -> str:
    """Write a length of time in its two largest parts."""
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
    """Write `40.0 ms` or `2.31 s`."""
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"


def length(ms: float) -> str:
    """Write a wait as exactly as it is worth: `573.2 ms`, `41 min`."""
    return milliseconds(ms) if ms < 60_000 else span(ms / 1000)


def moment(at: datetime | None) -> str:
    """Write an absolute moment in UTC, to the second."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: datetime | None) -> str:
    """Write only the time of day, in UTC."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%H:%M:%S}"


def machine(at: datetime) -> str:
    """Write RFC 3339 in UTC, as `?at=` takes it; whole seconds without their fraction."""
    exact = at.astimezone(UTC)
    whole = exact.microsecond == 0
    return exact.strftime("%Y-%m-%dT%H:%M:%SZ" if whole else "%Y-%m-%dT%H:%M:%S.%fZ")


def share(part: float | None, whole: float) -> int | None:
    """Return percent in whole numbers, 0 to 100; 1 for a little; None is unknown."""
    if part is None or whole <= 0:
        return None
    if part <= 0:
        return 0
    return max(1, min(100, round(100 * part / whole)))


def sum_known(values: Iterable[float | None]) -> float | None:
    """Add up; a part that is unknown makes the sum unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


CLOCK_SKEW = timedelta(seconds=5)
"""Two clocks may differ by so much before a moment counts as one of the future."""
MAX_MOMENT_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMoment:
    """The moment that a page shows; `at` None: now, with live updates."""

    at: datetime | None
    now: datetime

    @property
    def past(self) -> bool:
        """A moment of the past."""
        return self.at is not None

    @property
    def shown(self) -> datetime:
        """The moment itself."""
        return self.at or self.now

    @property
    def query(self) -> str:
        """The query that keeps a link in that moment."""
        return "" if self.at is None else f"?at={machine(self.at)}"


def page_moment(text: str, now: datetime) -> PageMoment:
    """Read `?at=` of an address; without a zone it is UTC. Raises: InvalidRequest."""
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
