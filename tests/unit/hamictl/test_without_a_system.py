"""Without a running system and without one in the environment, a question gets one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hamictl.__main__ import app
from typer.testing import CliRunner

NAMES = (
    *("KUBECONFIG", "HAMI_SCHEDULER_URL", "HAMI_POSTGRES_DSN", "HAMI_FOLDER"),
    *("HAMI_METRICS_URL", "HAMI_PAGES_URL"),
)
QUESTIONS = (
    "get pods",
    "get allocations",
    "get decisions",
    "get quotas",
    "get devices --at -15m",
    "describe node n1",
    "open",
    "who n1",
    "pending",
    "capacity --gpumem 8Gi",
    "trace too-much",
    "sql what-fits",
    "explain too-much",
    "history too-much",
    "delete too-much",
    "sql SELECT",
    "drift",
    "dead-letters",
    "dead-letters --retry 1",
    "adopt",
    "db check",
    "db upgrade",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_names_what_to_start_or_to_set(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    answered = CliRunner().invoke(app, question.split())

    assert isinstance(answered.exception, SystemExit), answered.exception
    assert answered.exit_code == 1
    assert answered.stdout == ""
    [line] = answered.stderr.splitlines()
    assert line.startswith("hamictl: ")
    assert "start a local system with `hamictl up`, or set " in line


def test_an_old_option_still_works_and_names_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    answered = CliRunner().invoke(app, ["dead-letters", "--send-again", "1"])

    renamed, problem = answered.stderr.splitlines()
    assert renamed.startswith("hamictl: --send-again is now --retry; ")
    assert problem.startswith("hamictl: the address of the scheduler is unknown")
