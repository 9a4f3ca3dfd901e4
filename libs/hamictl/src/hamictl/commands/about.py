"""Commands about hamictl itself: completion, help on topics, version."""

from __future__ import annotations

import platform
import sys
from enum import StrEnum
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # documented

from hamictl.commands.options import Answered
from hamictl.exit_codes import MEANINGS
from hamictl.output import render
from hamictl.output.records import TABLE
from hamictl.output.terminal import console


class Shell(StrEnum):
    """Shells for which completion exists."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


COMPLETE_VARIABLE = "_HAMICTL_COMPLETE"


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish")],
) -> None:
    """Print the completion script of a shell."""
    script = get_completion_script(
        prog_name="hamictl", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    sys.stdout.write(f"{script}\n")


TIMES = """Times, for --at, --since and --until:
  2026-11-20T14:05:00Z   RFC 3339
  2026-11-20 14:05       in your zone, with --utc in UTC
  14:05                  today
  yesterday 14:05
  -15m                   15 minutes ago; s, m, h, d and w, also together: -1h30m
  2h                     the same without a sign: 2 hours ago
  now"""
OUTPUT = """Forms of an answer, for -o:
  table     for people (the default)
  wide      with more columns
  json      {"apiVersion", "kind", "asOf", "items"}: bytes, ratios of 0 to 1, seconds, RFC 3339,
            null for what is unknown
  yaml      the same
  csv       one line a row, all fields
  name      one name a line, as in pod/default/train
  jsonpath={.items[*].node}   kubectl's templates, over the JSON
Data is on standard output, messages are on standard error."""


def _exit_codes() -> str:
    return "\n".join(f"  {code:<4} {text}" for code, text in MEANINGS.items())


TOPICS = {
    "exit-codes": lambda: f"Exit statuses:\n{_exit_codes()}",
    "times": lambda: TIMES,
    "output": lambda: OUTPUT,
}


def topics(
    topic: Annotated[str, typer.Argument(help=f"{', '.join(TOPICS)} (default: all)")] = "",
) -> None:
    """Show help on topics common to all commands."""
    if topic and topic not in TOPICS:
        raise typer.BadParameter(f"{topic!r}: use one of {', '.join(TOPICS)}", param_hint="TOPIC")
    asked = [topic] if topic else list(TOPICS)
    for name in asked:
        console.print(TOPICS[name](), highlight=False, markup=False, soft_wrap=True)


def version(output: Answered = TABLE) -> None:
    """Show the version of this command."""
    found = {"hamictl": installed_version("hamictl"), "python": platform.python_version()}
    if output.for_people:
        console.print(f"hamictl {found['hamictl']} (Python {found['python']})", highlight=False)
    else:
        render.write_document(found, output)
