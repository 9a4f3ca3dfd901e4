"""The moment that a page shows: now, or `?at=` of its address. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions.question import moment

from hami_metrics.pages.views.elements.amounts import machine

AHEAD = timedelta(seconds=5)
"""Two clocks may differ by so much before a moment counts as one of the future."""
LONGEST = 40
"""Characters of a moment in RFC 3339; other forms are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMoment:
    """`at` None: now, with live updates."""

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
        """What links need to stay in that moment."""
        return "" if self.at is None else f"?at={machine(self.at)}"


def page_moment(text: str, now: datetime) -> PageMoment:
    """From the address. Raises: InvalidRequest."""
    if not text:
        return PageMoment(at=None, now=now)
    # Without a zone it is UTC, as all times of these pages are.
    at = moment(text.strip(), now) if len(text) <= LONGEST else None
    if at is None:
        raise InvalidRequest(
            f"at: {text[:LONGEST]!r} is no moment; write one like 2026-11-20T14:05Z, 14:05 or -2m"
        )
    if at.year < 2000:
        raise InvalidRequest(f"at: {machine(at)} is before any record; choose a later moment")
    if at > now + AHEAD:
        raise InvalidRequest(f"at: {machine(at)} is in the future; leave `at` out for now")
    return PageMoment(at=at, now=now)
