"""Every command of hamictl in a block of a page is one that hamictl takes.

Only verbs and options are looked at. Blocks of other tools are run by the suites that read their
page (operations, compose, sql), or need a cluster.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hamictl.__main__ import app
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""Verbs under the name that pages have -> the name that hamictl may still have."""
BLOCKS = re.compile(r"^```(?:sh|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(hamictl .*)$", re.MULTILINE)
ENDS = {"|", ">", "&&"}


def commands() -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), line)
        for page in PAGES
        for block in BLOCKS.findall(page.read_text())
        for line in COMMAND.findall(block)
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_has_a_verb_and_options_that_there_are(page: str, line: str) -> None:
    command: Any = get_command(app)
    context = command.context_class(command, info_name="hamictl")
    typed = shlex.split(line.replace("VERB", "get"), comments=True)[1:]
    arguments = list(itertools.takewhile(lambda argument: argument not in ENDS, typed))
    while hasattr(command, "list_commands") and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        known = command.list_commands(context)
        found = name
        assert found in known, f"{page}: {line}"
        command = command.get_command(context, found)
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}

    asked = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    assert asked <= options | {"--help"}


def test_pages_have_commands() -> None:
    assert len(commands()) > 40
