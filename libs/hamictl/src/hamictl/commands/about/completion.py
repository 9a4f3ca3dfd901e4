"""`hamictl completion bash|zsh|fish`: the shell's script."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # documented


class Shell(StrEnum):
    """Shells whose completion is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


COMPLETE_VARIABLE = "_HAMICTL_COMPLETE"


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish")],
) -> None:
    """Print the script that completes verbs, options and names in a shell."""
    script = get_completion_script(
        prog_name="hamictl", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    sys.stdout.write(f"{script}\n")
