"""Which servers a DSN names."""

from __future__ import annotations

import pytest
from hamicommon.ledger.connection import place_of, places_of


@pytest.mark.parametrize(
    ("dsn", "places"),
    [
        ("postgresql://hami@db/hami", ["db:5432"]),
        ("postgresql://hami:p%40ss@db:6000/hami", ["db:6000"]),
        ("postgresql://db:6000/hami?sslmode=require", ["db:6000"]),
        ("postgresql://hami:secret@a:1,b:2/hami", ["a:1", "b:2"]),
        ("postgresql://hami:secret@a,b/hami", ["a:5432", "b:5432"]),
        ("postgresql://hami@[::1]:6000,[fe80::2]/hami", ["[::1]:6000", "[fe80::2]:5432"]),
    ],
)
def test_every_server_of_a_dsn_is_named_with_its_port(dsn: str, places: list[str]) -> None:
    assert places_of(dsn) == places
    assert place_of(dsn) == ",".join(places) + "/hami"
    assert "secret" not in place_of(dsn)
