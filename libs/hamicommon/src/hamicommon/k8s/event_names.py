"""Names of Event objects: that of the object they are about, and a part of their own."""

from __future__ import annotations

_MAX_OF_THE_OBJECT = 200
"""Characters; a name may have 253, and an object's own name may have them all."""


def event_name(involved: str, own: str) -> str:
    """A DNS subdomain for an event about `involved`; `own` is lower-case hex, 52 digits at most."""
    # A label may not end in what the cut left there.
    return f"{involved[:_MAX_OF_THE_OBJECT].rstrip('.-')}.{own}"
