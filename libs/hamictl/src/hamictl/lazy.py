"""A group of commands whose modules are imported when they are called.

The list of commands knows each one's module and summary, so `hamictl --help` imports none of them
and a command only its own. The summaries are the first lines of the functions' docstrings; a test
compares them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command before it is imported."""

    target: str
    """`module:name` of a function, or of a `typer.Typer`."""
    summary: str


class LazyGroup(TyperGroup):
    """The group of `commands`, by name, in the order of the help page."""

    commands_by_name: dict[str, LazyCommand]
    """Set by the subclass that `lazy_app` makes."""
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in their order."""
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, imported; while help is written a stand-in with its summary."""
        found = self.commands_by_name.get(cmd_name)
        if found is None:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=found.summary)
        return load(cmd_name, found)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help page, without an import."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def load(name: str, command: LazyCommand) -> Any:
    """Imports a command and makes it callable."""
    module, _, attribute = command.target.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(target)
        target = alone
    made = typer.main.get_command(target)
    made.name = name
    return made


def lazy_app(commands: dict[str, LazyCommand], summary: str) -> typer.Typer:
    """An application of these commands."""
    group = type("Commands", (LazyGroup,), {"commands_by_name": commands})
    app = typer.Typer(
        cls=group,
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    return app
