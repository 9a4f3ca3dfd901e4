"""Commands are imported when they are called; their summaries are those of their functions."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
import typer
from hamictl.__main__ import COMMANDS
from hamictl.verbs.lazy import LazyCommand

HEAVY = ("numpy", "sqlalchemy", "alembic", "kubernetes", "kubelocal")
RUN = """
import sys
{before}
from hamictl.__main__ import main
for line in {lines!r}:
    sys.argv = ["hamictl", *line]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    for name in {heavy!r}:
        if name in sys.modules:
            print(*line, "imports", name, file=sys.stderr)
"""
WITHOUT_EXTRA = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "hamireplay":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(
    *lines: tuple[str, ...], heavy: tuple[str, ...] = (), before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run hamictl with each of the command lines, one after the other in one process."""
    code = RUN.format(lines=lines, heavy=heavy, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)
def test_a_summary_is_the_first_sentence_of_its_command(name: str, command: LazyCommand) -> None:
    module, _, attribute = command.target.partition(":")
    target = getattr(importlib.import_module(module), attribute)

    summary = target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)

    assert summary.partition("\n\n")[0].replace("\n", " ") == command.summary


def test_a_question_imports_no_engine_no_database_library_and_no_emulator() -> None:
    verbs = ("explain", "history", "drift", "apply", "get")

    done = run(*((verb, "--help") for verb in verbs), heavy=HEAVY)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_of_commands_imports_none_of_them() -> None:
    done = run(("--help",), heavy=(*HEAVY, "httpx", "aiohttp", "asyncpg", "pydantic"))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["replay", "dump"])
def test_a_verb_of_an_extra_names_what_to_install(verb: str) -> None:
    done = run((verb,), before=WITHOUT_EXTRA)

    assert done.returncode == 1
    assert done.stderr == (
        f"hamictl: {verb} needs the package hamireplay, which is not installed: "
        "pip install 'hamictl[replay]'\n"
    )


def test_every_other_verb_works_without_the_extra() -> None:
    verbs = ("simulate", "lint", "capacity", "explain")

    done = run(*((verb, "--help") for verb in verbs), before=WITHOUT_EXTRA)

    assert (done.returncode, done.stderr) == (0, "")


def test_an_old_name_of_a_verb_still_works_and_names_the_new_one() -> None:
    done = run(("fits", "--help"))

    assert "--gpumem" in done.stdout
    assert done.stderr.splitlines()[0] == (
        "hamictl: fits is now capacity; the old name will stop working in 0.4.0"
    )


@pytest.mark.parametrize(
    ("typed", "same"), [("help explain", "explain --help"), ("--version", "version")]
)
def test_help_of_a_verb_and_the_version_have_the_form_that_people_try_first(
    typed: str, same: str
) -> None:
    found, wanted = (run(tuple(each.split())).stdout for each in (typed, same))

    assert found == wanted != ""


def test_the_list_of_verbs_has_their_groups_and_no_old_name() -> None:
    done = run(("--help",))

    groups = ("Look", "Explain", "Plan", "Operate", "Local")
    places = [done.stdout.index(f"─ {group} ─") for group in groups]
    assert places == sorted(places)
    assert " fits " not in done.stdout


def test_an_unknown_command_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hamictl", "explian"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "No such command 'explian'. Did you mean 'explain'" in done.stderr
