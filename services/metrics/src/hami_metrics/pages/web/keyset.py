"""Where the next page of a list begins, as text of an address: a moment and an id."""

from __future__ import annotations

import re
from datetime import datetime

from hamicommon.errors import InvalidRequest

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def key_text(key: tuple[datetime, str]) -> str:
    """For `after=`."""
    return f"{key[0].isoformat()}~{key[1]}"


def key_of(text: str) -> tuple[datetime, str] | None:
    """From `after=`; None when it is empty. Raises: InvalidRequest."""
    if not text:
        return None
    moment, _, last = text.partition("~")
    try:
        at = datetime.fromisoformat(moment)
        if at.tzinfo is None or not 2000 <= at.year < 9999 or not _UUID.fullmatch(last):
            raise ValueError(text)
    except ValueError:
        raise InvalidRequest(
            "after: it is made by the link to the next page; open the list without it"
        ) from None
    return at, last
