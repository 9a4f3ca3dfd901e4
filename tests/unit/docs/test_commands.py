"""Every command of hamictl in a block of a page, or in a help, is one that its own parser takes.

Values are not looked at. Blocks of other tools are run by the suites that read their page
(operations, compose, sql), or need a cluster.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

from hamictl.__main__ import app
from hamictl.verbs.examples import EXAMPLES
from typer import TyperException
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = re.compile(r"^```(?:sh|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|^\$ |^.*[ (])(?:hamictl|kubectl hami) (.*)$", re.MULTILINE)
ENDS = ("|", ">", "&&", ")", "&")


def problem_of(line: str) -> str:
    """Return what hamictl has against the terms behind its name; empty: nothing."""
    command: Any = get_command(app)
    context = command.context_class(command, info_name="hamictl")
    typed = shlex.split(line.replace("VERB", "get"), comments=True)
    terms = list(itertools.takewhile(lambda term: not term.startswith(ENDS), typed))
    terms = [term.removesuffix(")") for term in terms]
    try:
        while hasattr(command, "list_commands") and terms and not terms[0].startswith("-"):
            name, *terms = terms
            if name not in command.list_commands(context):
                return f"there is no verb {name}"
            command = command.get_command(context, name)
            context = command.context_class(command, info_name=name)
        command.make_parser(context).parse_args([term for term in terms if term != "--help"])
    except TyperException as error:
        return str(error.message or error)
    return ""


def test_a_command_of_a_page_or_a_help_has_a_verb_and_options_that_there_are() -> None:
    blocks = [
        (page.relative_to(ROOT).as_posix(), block)
        for page in PAGES
        for block in BLOCKS.findall(page.read_text())
    ]
    blocks += [("help", line) for examples in EXAMPLES.values() for line in examples]
    lines = [(place, line) for place, block in blocks for line in COMMAND.findall(block)]

    assert len(lines) > 100
    assert [(*line, problem) for line in lines if (problem := problem_of(line[1]))] == []
    assert problem_of("gett pods"), "an unknown verb has to be found"
    assert problem_of("get pods -z"), "an unknown option has to be found"
