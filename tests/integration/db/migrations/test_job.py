"""`python -m hamicommon.ledger`, as the Jobs of `k8s/` run it, beside servers that come later."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hamicommon.ledger.__main__ import main as the_job

from tests.relay import relay
from tests.waiting import PATIENCE_S, wait

MIGRATIONS = Path(__file__).parents[4] / "migrations"


@contextmanager
def job(dsn: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = folder / "job.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "hamicommon.ledger", str(MIGRATIONS)],
            env={"HAMI_POSTGRES_DSN": dsn, "PATH": ""},
            stdout=out,
            stderr=out,
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()


def test_a_postgres_that_starts_later_is_waited_for(
    empty_postgres_dsn: str, tmp_path: Path
) -> None:
    with (
        relay(empty_postgres_dsn) as service,
        job(service.dsn, tmp_path) as (process, log),
    ):
        wait(
            lambda: (
                "Waiting for Postgres to accept connections" in log.read_text()
                or process.poll() is not None
            ),
            "the job finds no server",
        )
        assert process.poll() is None, log.read_text()
        service.open()

        assert process.wait(PATIENCE_S) == 0, log.read_text()

    assert re.search(
        r"Waiting for Postgres to accept connections: Postgres at .* can't be reached",
        log.read_text(),
    )
    assert "The schema is ready; migrations to run after the rollout: nothing" in log.read_text()


@pytest.mark.parametrize(
    ("dsn", "sentence"),
    [
        ("{dsn}_other", "does not exist"),
        ("mysql://hami@localhost/hami", "must look like postgresql://"),
    ],
    ids=["no such database", "no DSN"],
)
def test_what_no_wait_changes_ends_the_job_at_once(
    dsn: str,
    sentence: str,
    empty_postgres_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HAMI_POSTGRES_DSN", dsn.format(dsn=empty_postgres_dsn))

    with caplog.at_level("INFO"):
        assert the_job([str(MIGRATIONS)]) == 1

    assert sentence in caplog.text
    assert "Waiting for Postgres to accept connections" not in caplog.text
