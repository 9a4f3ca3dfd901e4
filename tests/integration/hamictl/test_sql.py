"""`hamictl sql` only reads, whatever its login may do: here it is the owner, a superuser."""

import asyncio
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.commands import query as asked


@pytest.fixture(autouse=True)
def ledger(postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No local system runs here: the environment names the ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAMI_POSTGRES_DSN", postgres_dsn)


async def test_a_query_and_an_explanation_are_answered(postgres_dsn: str) -> None:
    columns, rows = await asked._query(
        "WITH x AS (SELECT 1 AS a, 'b' AS a) SELECT * FROM x; -- the end"
    )
    assert (columns, rows) == (["a", "a"], [(1, "b")])
    assert (await asked._query("select current_user"))[1] == [("hami_reader",)]
    assert (await asked._query("explain select * from nodes"))[1]


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO PROGRAM 'touch {witness}'",
        "DO $$ BEGIN EXECUTE 'SET ROLE NONE'; COPY (SELECT 1) TO PROGRAM 'touch {witness}'; END $$",
        "SELECT 1; COPY (SELECT 1) TO PROGRAM 'touch {witness}'",
        "EXPLAIN SELECT 1; COPY (SELECT 1) TO PROGRAM 'touch {witness}'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT lo_export(1, '{witness}')",
        "WITH x AS (DELETE FROM nodes RETURNING 1) SELECT * FROM x",
        "DELETE FROM nodes",
        "RESET ROLE",
        "SELECT * FROM nodes FOR UPDATE",
    ],
)
async def test_what_does_more_than_read_is_refused(
    postgres_dsn: str, tmp_path: Path, query: str
) -> None:
    tmp_path.chmod(0o777)
    witness = tmp_path / "ran"

    with pytest.raises(InvalidRequest, match=r"^SQL: "):
        await asked._query(query.replace("{witness}", str(witness)))

    assert not await asyncio.to_thread(witness.exists)


async def test_without_the_role_in_the_database_the_query_is_refused(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "READER", "hami_nobody")

    with pytest.raises(InvalidRequest, match="lacks the role hami_nobody, as which queries run"):
        await asked._query("select 1")
