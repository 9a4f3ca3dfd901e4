"""Amounts, ages and moments as people read them; what is not known is `?`, never 0. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN = "?"
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def gib(mib: float | None) -> str:
    """MiB as GiB with one decimal where it has one: `14 GiB`, `38.5 GiB`, `512 MiB` below one."""
    if mib is None:
        return UNKNOWN
    if 0 < mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{bare_gib(mib)} GiB"


def bare_gib(mib: float | None) -> str:
    """The number of `gib` alone: `38.5`."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.1f}".removesuffix(".0")


def percent(value: float | None) -> str:
    """`41 %`."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def granted_cores(value: int, *, held: bool = True) -> str:
    """`30 %`, or `any` of slices that are granted no share and may use all cores that are idle."""
    return "any" if held and not value else f"{value} %"


def count(value: int | None) -> str:
    """With thin spaces between thousands: `12 345`."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", "\u2009")


def age(since: datetime | None, now: datetime) -> str:
    """`3 s`, `41 min`, `2 h 10 min`, `41 d`; a moment ahead of ours is `0 s`."""
    return UNKNOWN if since is None else span((now - since).total_seconds())


def span(seconds: float) -> str:
    """A length of time in its two largest parts."""
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


def moment(at: datetime | None) -> str:
    """Absolute, UTC, to the second."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: datetime | None) -> str:
    """The time of day alone, UTC."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%H:%M:%S}"


def machine(at: datetime) -> str:
    """RFC 3339 in UTC; whole seconds without their fraction. What `?at=` takes."""
    exact = at.astimezone(UTC)
    whole = exact.microsecond == 0
    return exact.strftime("%Y-%m-%dT%H:%M:%SZ" if whole else "%Y-%m-%dT%H:%M:%S.%fZ")


def share(part: float | None, whole: float) -> int | None:
    """Percent in whole numbers, 0 to 100; 1 for a little; None is unknown."""
    if part is None or whole <= 0:
        return None
    if part <= 0:
        return 0
    return max(1, min(100, round(100 * part / whole)))
