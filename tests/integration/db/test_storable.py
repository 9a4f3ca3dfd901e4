"""Any text and JSON that people can write reaches PostgreSQL, and comes back but for its NULs."""

from typing import Any

import orjson
from hamicommon.ledger.database import open_database
from hamicommon.ledger.pool import storable, storable_json
from hamicommon.settings import PostgresSettings
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

_texts = st.lists(
    st.sampled_from(["\0", "\\", "u0000", "\ufffd", "a", "\n", '"', "\U0001f980"]), max_size=8
).map("".join)
_values = st.recursive(
    _texts | st.none() | st.booleans() | st.integers(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


def without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [without_nul(one) for one in value]
    if isinstance(value, dict):
        return {without_nul(key): without_nul(one) for key, one in value.items()}
    return value


@given(_values)
def test_json_is_changed_in_its_nuls_alone(value: Any) -> None:
    assert orjson.loads(storable_json(value)) == without_nul(value)


@given(st.lists(_texts, max_size=3), _texts)
def test_parameters_are_changed_in_their_nuls_alone(texts: list[str], text: str) -> None:
    assert storable(texts) == without_nul(texts)
    assert storable((text, 1, None)) == (without_nul(text), 1, None)


async def test_text_lists_and_json_come_back_without_nuls(postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    given, wanted = ["a\0b", "\\u0000"], ["a\ufffdb", "\\u0000"]
    query = "SELECT $1::text, $2::text[], $3::jsonb"
    async with (
        open_database(settings, application="test") as database,
        database.transaction() as connection,
    ):
        for fetchrow in (database.fetchrow, connection.fetchrow):
            row = await fetchrow(query, given[0], given, {given[0]: given})
            assert list(row) == [wanted[0], wanted, {wanted[0]: wanted}]
        assert await connection.fetchval("SELECT $1::text", given[0]) == wanted[0]
        await connection.execute("CREATE TEMP TABLE given (value text)")
        await connection.execute("INSERT INTO given VALUES ($1)", given[0])
        await connection.executemany("INSERT INTO given VALUES ($1)", [[value] for value in given])
        rows = await connection.fetch("SELECT value FROM given")
        assert [row["value"] for row in rows] == [wanted[0], *wanted]
