"""`hamictl version`."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed_version

from hamictl.commands.options import Answered
from hamictl.output import render
from hamictl.output.formats import TABLE
from hamictl.output.terminal import console


def version(output: Answered = TABLE) -> None:
    """Show the version of this command."""
    found = {"hamictl": installed_version("hamictl"), "python": platform.python_version()}
    if output.for_people:
        console.print(f"hamictl {found['hamictl']} (Python {found['python']})", highlight=False)
    else:
        render.write_document(found, output)
