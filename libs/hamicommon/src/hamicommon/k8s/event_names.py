"""Names of Event objects, made from the name of the object that they are about."""

from __future__ import annotations

_MAX_OF_THE_OBJECT = 200
"""Maximum characters of the object's name in an event's name; both have 253 at most."""


def event_name(involved: str, own: str) -> str:
    """Return the name of an event about `involved`.

    `own` is lower-case hex of at most 52 digits.
    """
    # A label may not end in what the cut left there.
    return f"{involved[:_MAX_OF_THE_OBJECT].rstrip('.-')}.{own}"
