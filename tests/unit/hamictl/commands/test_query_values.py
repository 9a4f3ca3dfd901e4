"""Values of a query that JSON and tables have no form for: ranges of moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import asyncpg
import pytest
from hamictl.commands.query import range_text

FROM = datetime(2026, 11, 26, 14, 27, 9, tzinfo=timezone(timedelta(hours=1)))
UNTIL = datetime(2026, 11, 26, 13, 29, 42, tzinfo=UTC)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (asyncpg.Range(FROM, UNTIL), "[2026-11-26T13:27:09Z,2026-11-26T13:29:42Z)"),
        (asyncpg.Range(FROM, None), "[2026-11-26T13:27:09Z,)"),
        (asyncpg.Range(1, 4), "[1,4)"),
        (asyncpg.Range(empty=True), "empty"),
    ],
)
def test_a_range_is_written_with_moments_in_iso_8601(held: asyncpg.Range, wanted: str) -> None:
    assert range_text(held) == wanted
