"""`hamictl db`: bring the ledger's schema up to date, or check whether it is fit to serve.

Exit status of `check`: 0 all is well, 1 it could not be asked, else by the gravest finding, see
`STATUS`.
"""

from __future__ import annotations

from pathlib import Path

import typer
from hamicommon.ledger.migrations import upgrade as schema
from hamicommon.ledger.migrations.inspection import SchemaFault, inspect, revisions_of
from hamicommon.settings import PostgresSettings
from hamilocal.system.layout import project
from pydantic import SecretStr

from hamictl.commands.runner import console, spoken_errors
from hamictl.settings import Settings
from hamictl.target import find_target

STATUS = {
    SchemaFault.BEHIND: 3,
    SchemaFault.NEWER: 4,
    SchemaFault.DRIFT: 5,
    SchemaFault.BROKEN: 6,
    SchemaFault.PARTITIONS: 7,
}
"""2 is a wrong option, as everywhere."""

app = typer.Typer(help="The ledger's schema.", no_args_is_help=True)


def _where() -> tuple[PostgresSettings, Path]:
    settings = Settings()
    dsn = find_target(settings).need_postgres()
    return PostgresSettings(dsn=SecretStr(dsn)), settings.migrations or project().migrations


@app.command()
def upgrade(
    before_rollout: bool = typer.Option(
        False,
        "--before-rollout",
        help="Only what the version that still serves can live with; run it again without this "
        "after the new version runs everywhere.",
    ),
) -> None:
    """Apply the migrations that are missing."""
    with spoken_errors():
        settings, migrations = _where()
        current = revisions_of(settings)
        missing = schema.pending(migrations, current)
        target = schema.before_rollout(migrations, current) if before_rollout else schema.HEADS
        if missing:
            schema.upgrade(settings, migrations, target)
        left = schema.pending(migrations, revisions_of(settings))
    for name in (name for name in missing if name not in left):
        console.print(f"applied {name}", highlight=False)
    if left:
        console.print(f"after the roll-out: {', '.join(left)}", highlight=False)
    else:
        console.print("the schema is current")


@app.command()
def check() -> None:
    """Compare the database with this version, and ask it whether every promise holds."""
    with spoken_errors():
        found = inspect(*_where())
    for finding in found:
        console.print(f"{finding.fault}: {finding.sentence}", highlight=False, markup=False)
    if found:
        gravest = min(found, key=lambda finding: list(SchemaFault).index(finding.fault))
        raise typer.Exit(STATUS[gravest.fault])
    console.print("the schema is current, and every promise holds")
