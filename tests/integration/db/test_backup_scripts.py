"""The scripts of `k8s/components/backup` on a ledger: the kept data and the result of a restore.

`tests/e2e_manifests/test_day_two.py` runs them as Jobs.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
import yaml
from hamilocal.servers.binaries import postgres_home

from tests.integration.db.one_card import connect_with_a_card

PROJECT = Path(__file__).resolve().parents[3]
COMPONENT = PROJECT / "k8s" / "components" / "backup" / "backup.yaml"
RUN_TIMEOUT_S = 240.0
OLD = ("ledger-20250101T000000Z.dump", "ledger-20260101T000000Z.dump")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def scripts() -> dict[str, str]:
    [found] = [
        each["data"]
        for each in yaml.safe_load_all(COMPONENT.read_text())
        if each["kind"] == "ConfigMap"
    ]
    return dict(found)


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


@pytest.fixture
def run(postgres_dsn: str, backups: Path, tmp_path: Path) -> Run:
    """A script, with the container's folders in a folder of this test's."""
    for name, text in scripts().items():
        text = text.replace("/backups", str(backups)).replace("/scripts", str(tmp_path))
        (tmp_path / name).write_text(text)

    def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{postgres_home() / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(tmp_path / name)],
            env={"PATH": path, "DSN": postgres_dsn, "KEEP": "2", "DUMP": "", **environment},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )

    return run


async def test_a_restore_brings_the_ledger_of_the_dump_and_its_rights_and_no_number_twice(
    run: Run, backups: Path, postgres_dsn: str
) -> None:
    ledger = await connect_with_a_card(postgres_dsn)
    described = (
        "SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    # The services' roles have it as everybody has.
    may = "SELECT has_schema_privilege('public', 'public', 'usage')"
    before = sorted(map(tuple, await ledger.fetch(described)))
    assert await ledger.fetchval(may)
    token = await ledger.fetchval("SELECT nextval('allocation_tokens')")
    version = await ledger.fetchval("SELECT version FROM devices")
    for name in OLD:
        (backups / name).write_text("")
    (backups / ".unfinished-ledger-1.dump").write_text("")

    done = run("backup.sh")

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    [newest, second] = sorted((path.name for path in backups.iterdir()), reverse=True)
    assert second == OLD[1]
    assert newest in done.stdout
    await ledger.execute("CREATE TABLE later (); DELETE FROM devices")
    await ledger.close()
    done = run("restore.sh")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"{newest}: restored\n"
    ledger = await asyncpg.connect(postgres_dsn)
    assert sorted(map(tuple, await ledger.fetch(described))) == before
    assert await ledger.fetchval(may)
    assert await ledger.fetchval("SELECT nextval('allocation_tokens')") > token + 1_000_000
    assert await ledger.fetchval("SELECT version FROM devices") == version + 1_000_000
    for name in ("backup.sh", "restore.sh"):
        assert run(name).returncode == 0, "of what was restored"
    assert sorted(map(tuple, await ledger.fetch(described))) == before
    assert await ledger.fetchval(may)
    await ledger.close()


async def test_a_broken_dump_and_one_that_is_not_there_change_nothing(
    run: Run, backups: Path, postgres_dsn: str
) -> None:
    ledger = await connect_with_a_card(postgres_dsn)
    await ledger.execute(
        "INSERT INTO quotas (namespace, resource, limit_amount) VALUES ('a', 'b', 1)"
    )
    assert run("backup.sh").returncode == 0
    [dump] = backups.iterdir()
    await ledger.execute("CREATE TABLE later ()")
    whole = dump.read_bytes()

    for length in (0, len(whole) // 2, len(whole) - 200):
        (backups / "ledger-broken.dump").write_bytes(whole[:length])
        done = run("restore.sh", DUMP="ledger-broken.dump")
        assert done.returncode != 0, length
        assert await ledger.fetchval("SELECT count(*) FROM later") == 0
        assert await ledger.fetchval("SELECT count(*) FROM devices") == 1

    done = run("restore.sh", DUMP="ledger-none.dump")
    assert done.returncode == 1
    assert (
        f"ledger-none.dump: no such dump; there are: ledger-broken.dump {dump.name}" in done.stderr
    )
    await ledger.close()


def test_a_database_that_is_away_leaves_the_dumps_that_there_are(run: Run, backups: Path) -> None:
    for name in OLD:
        (backups / name).write_text("")

    done = run("backup.sh", DSN="postgresql://127.0.0.1:9/none", KEEP="1")

    assert done.returncode != 0
    assert sorted(path.name for path in backups.iterdir()) == list(OLD)


def test_the_numbers_are_those_of_the_page() -> None:
    lines = (PROJECT / "docs" / "operations.md").read_text().splitlines()
    page = [line.strip() for line in lines if line.startswith("       ") and line.endswith(";")]

    assert scripts()["numbers.sql"].splitlines() == ["SET search_path = public;", *page]
