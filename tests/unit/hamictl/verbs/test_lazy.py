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
sys.argv = ["hamictl", *{arguments!r}]
from hamictl.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*[name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


WITHOUT_EXTRA = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "hamireplay":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["hamictl", *{arguments!r}]
from hamictl.__main__ import main
main()
"""


def imported_by(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> str:
    code = RUN.format(arguments=arguments, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)
def test_a_summary_is_the_first_sentence_of_its_command(name: str, command: LazyCommand) -> None:
    module, _, attribute = command.target.partition(":")
    target = getattr(importlib.import_module(module), attribute)

    summary = target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)

    assert summary.partition("\n\n")[0].replace("\n", " ") == command.summary


@pytest.mark.parametrize("command", ["explain", "history", "drift", "apply", "get"])
def test_a_question_imports_no_engine_no_database_library_and_no_emulator(command: str) -> None:
    assert imported_by(command, "--help") == ""


def test_the_list_of_commands_imports_none_of_them() -> None:
    assert imported_by("--help", heavy=(*HEAVY, "httpx", "aiohttp", "asyncpg", "pydantic")) == ""


@pytest.mark.parametrize("verb", ["replay", "dump"])
def test_a_verb_of_an_extra_names_what_to_install(verb: str) -> None:
    done = without_the_extra(verb)

    assert done.returncode == 1
    assert done.stderr == (
        f"hamictl: {verb} needs the package hamireplay, which is not installed: "
        "pip install 'hamictl[replay]'\n"
    )


@pytest.mark.parametrize("verb", ["simulate", "lint", "fits", "explain"])
def test_every_other_verb_works_without_the_extra(verb: str) -> None:
    done = without_the_extra(verb, "--help")

    assert (done.returncode, done.stderr) == (0, "")


def without_the_extra(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = WITHOUT_EXTRA.format(arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_unknown_command_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hamictl", "explian"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "No such command 'explian'. Did you mean 'explain'" in done.stderr
