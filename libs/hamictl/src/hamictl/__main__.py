"""The `hamictl` command: assembles the groups of commands."""

from __future__ import annotations

import typer

from hamictl.commands import (
    adopt,
    answers,
    database,
    lint,
    objects,
    simulate,
    system,
    troubles,
    vendors,
)

app = typer.Typer(
    help="GPU slices on Kubernetes: a local system in one command, and questions to any system.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(system.up)
app.command()(system.down)
app.command()(objects.apply)
app.command()(objects.get)
app.command()(objects.delete)
app.command()(answers.explain)
app.command()(answers.history)
app.command()(answers.sql)
app.command()(troubles.drift)
app.command()(troubles.dead_letters)
app.command()(simulate.simulate)
app.command()(lint.lint)
app.command()(vendors.vendors)
app.command()(adopt.adopt)
app.add_typer(database.app, name="db")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
