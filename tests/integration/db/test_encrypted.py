"""The DSN that `hami-bootstrap` writes, through every way that reaches Postgres."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hami_webhook.credentials import missing
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.__main__ import main as the_job
from hamicommon.ledger.database import open_database
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from pydantic import SecretStr
from typer.testing import CliRunner

from tests.tls_front import Front, tls_front

PROJECT = Path(__file__).parents[3]
MIGRATIONS = PROJECT / "migrations"
TIMEOUT_S = 120
COMMANDS = {
    "the Job": [sys.executable, "-m", "hamicommon.ledger", str(MIGRATIONS)],
    "check": [sys.executable, "-m", "hamictl", "db", "check"],
    "upgrade": [sys.executable, "-m", "hamictl", "db", "upgrade"],
}


def bootstraps_parameters(ca_file: Path) -> str:
    """Return bootstrap's parameters of the database's URL, with the file of this test."""
    secrets = missing({}, "hami-system")
    query = urlsplit(secrets["hami-postgres-scheduler"]["dsn"].decode()).query
    return "?" + query.replace("/ca/ca.crt", str(ca_file))


def over_tls(front: Front, dsn: str, *, host: str = "localhost", parameters: str = "") -> str:
    parts = urlsplit(dsn)
    tls = parameters or bootstraps_parameters(front.ca_file)
    return f"postgresql://{parts.username}:secret-text@{host}:{front.port}{parts.path}{tls}"


def run(command: str, dsn: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        COMMANDS[command],
        env={
            **os.environ,
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_MIGRATIONS": str(MIGRATIONS),
            "HAMI_FOLDER": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def front(tmp_path: Path, empty_postgres_dsn: str) -> Iterator[Front]:
    with tls_front(tmp_path, empty_postgres_dsn) as front:
        yield front


async def test_the_job_the_commands_and_the_pools_take_bootstraps_dsn(
    front: Front, empty_postgres_dsn: str, tmp_path: Path
) -> None:
    dsn = over_tls(front, empty_postgres_dsn)
    for command in COMMANDS:
        done = run(command, dsn, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    settings = PostgresSettings(dsn=SecretStr(dsn))
    async with open_pool(settings, "test") as pool, open_database(settings, application="t") as db:
        assert await pool.fetchval("SELECT count(*) FROM nodes") == 0
        await db.ping()


def wrong_dsns(front: Front, plain: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Return, by kind of error, a wrong DSN and the text that its message must contain."""
    other = folder / "other"
    other.mkdir()
    with tls_front(other, plain) as another:
        untrusted = another.ca_file
    (folder / "empty.crt").write_text("")
    unencrypted = urlsplit(plain)
    within = f"?sslmode=verify-full&sslrootcert={folder}"
    return {
        "another authority": (
            over_tls(front, plain, parameters=bootstraps_parameters(untrusted)),
            "its certificate is not of an authority in sslrootcert=",
        ),
        "another host": (
            over_tls(front, plain, host="127.0.0.2"),
            "its certificate is for another host than 127.0.0.2",
        ),
        "no file": (
            over_tls(front, plain, parameters=f"{within}/gone.crt"),
            f"sslrootcert={folder}/gone.crt: there is no such file",
        ),
        "an empty file": (
            over_tls(front, plain, parameters=f"{within}/empty.crt"),
            "holds no certificate",
        ),
        "no TLS": (
            f"postgresql://hami@localhost:{unencrypted.port}{unencrypted.path}"
            + bootstraps_parameters(front.ca_file),
            "the server speaks no TLS, which sslmode=verify-full asks for",
        ),
        "no mode": (
            over_tls(front, plain, parameters="?sslmode=perhaps"),
            "`sslmode` parameter must be one of",
        ),
    }


@pytest.mark.parametrize(
    "wrong", ["another authority", "another host", "no file", "an empty file", "no TLS", "no mode"]
)
def test_a_server_that_is_not_the_one_wanted_is_one_sentence(
    wrong: str,
    tmp_path: Path,
    empty_postgres_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Listens on every address of loopback's net, so that a wrong host is reached.
    with tls_front(tmp_path, empty_postgres_dsn, bind="0.0.0.0") as front:
        dsn, sentence = wrong_dsns(front, empty_postgres_dsn, tmp_path)[wrong]
        monkeypatch.setenv("HAMI_POSTGRES_DSN", dsn)
        monkeypatch.setenv("HAMI_POSTGRES_CONNECT_TIMEOUT_S", "30")
        monkeypatch.setenv("HAMI_MIGRATIONS", str(MIGRATIONS))
        monkeypatch.setenv("HAMI_FOLDER", str(tmp_path))

        with caplog.at_level("INFO"):
            assert the_job([str(MIGRATIONS)]) == 1
        check = CliRunner().invoke(app, ["db", "check"])
        asyncio.run(pools_fail_with(dsn, sentence))

    assert check.exit_code == (
        ExitCode.FAILED if wrong in ("no file", "no mode") else ExitCode.UNREACHABLE
    )
    for shown in (" ".join(caplog.text.split()), " ".join(check.output.split())):
        assert sentence in shown
        assert "Traceback" not in shown
        assert "secret-text" not in shown


async def pools_fail_with(dsn: str, sentence: str) -> None:
    settings = PostgresSettings(dsn=SecretStr(dsn), connect_timeout_s=30)
    with pytest.raises(HamiError, match=re.escape(sentence)):
        async with open_pool(settings, "test") as pool:
            await pool.fetchval("SELECT 1")
    async with open_database(settings, application="test") as database:
        with pytest.raises(Unavailable, match=re.escape(sentence)):
            await database.ping()


def test_an_expired_certificate_is_named_so(tmp_path: Path, empty_postgres_dsn: str) -> None:
    with tls_front(tmp_path, empty_postgres_dsn, valid_s=-60) as front:
        done = run("the Job", over_tls(front, empty_postgres_dsn), tmp_path)

    assert done.returncode == 1
    assert "its certificate has expired" in done.stdout
