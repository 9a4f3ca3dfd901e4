"""Exit statuses: one table in the code, in `hamictl help` and in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hamicommon.errors import Conflict, Forbidden, HamiError, InvalidRequest, NotFound, Unavailable
from hamictl.__main__ import COMMANDS, app
from hamictl.exit_codes import MEANINGS, ExitCode, WrongUsage, exit_code_of
from hamictl.verbs.examples import EXAMPLES
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 1),
        (WrongUsage("x"), 2),
        (Conflict("x"), 1),
        (HamiError("x"), 1),
        (NotFound("x"), 3),
        (Forbidden("x"), 4),
        (Unavailable("x"), 5),
    ],
)
def test_each_error_has_its_status(error: HamiError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_help_has_the_table() -> None:
    shown = CliRunner().invoke(app, ["help", "exit-codes"]).stdout

    assert [int(line.split()[0]) for line in shown.splitlines()[1:]] == list(MEANINGS)
    assert set(MEANINGS) == set(ExitCode)


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hamictl.md").read_text()

    for code, text in MEANINGS.items():
        assert f"| {code} | {text.replace('--exit-code', '`--exit-code`')} |" in page


def test_a_wrong_option_ends_with_2() -> None:
    for argv in (["nope"], ["get", "nope"], ["get", "pods", "-o", "nope"], ["help", "nope"]):
        assert CliRunner().invoke(app, argv).exit_code == ExitCode.WRONG_USAGE, argv


def test_a_server_that_is_away_ends_with_5(tmp_path: Path) -> None:
    environment = {"HAMI_FOLDER": str(tmp_path), "HAMI_SCHEDULER_URL": "http://127.0.0.1:1"}

    asked = CliRunner().invoke(app, ["get", "devices"], env=environment)

    assert asked.exit_code == ExitCode.UNREACHABLE, asked.output
    assert asked.stdout == ""


def test_the_help_of_each_verb_begins_with_examples_of_it() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    for verb in COMMANDS:
        if verb in ("db", "kueue", "scale"):
            continue  # groups: their pages list their own verbs
        shown = CliRunner().invoke(app, [verb, "--help"]).stdout
        first = next(line for line in shown.splitlines() if line)
        assert first.startswith("  $ "), (verb, shown)
        assert all(f"hamictl {verb}" in line for line in EXAMPLES[verb]), verb
