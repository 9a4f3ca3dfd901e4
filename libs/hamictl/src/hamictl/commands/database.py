"""`hamictl db`: migrate the ledger's schema, or check it.

Exit status of `check`: 0 all is well, 1 it could not be asked, otherwise by the gravest finding,
see
`STATUS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from hamicommon.errors import Unavailable
from hamicommon.ledger.migrations import upgrade as schema
from hamicommon.ledger.migrations.inspection import SchemaFault, inspect, revisions_over
from hamicommon.ledger.migrations.session import SchemaSession
from hamicommon.settings import PostgresSettings
from hamilocal.system.layout import project
from pydantic import SecretStr

from hamictl.commands.runner import console, spoken_errors
from hamictl.scheduler_client import closed_forward
from hamictl.settings import Settings
from hamictl.target import find_target

STATUS = {
    SchemaFault.BEHIND: 3,
    SchemaFault.NEWER: 4,
    SchemaFault.DRIFT: 5,
    SchemaFault.BROKEN: 6,
    SchemaFault.PARTITIONS: 7,
}
"""Exit statuses of `db check`; 2 always means a wrong option."""

app = typer.Typer(
    help="Upgrade or check the ledger's schema.", no_args_is_help=True, add_completion=False
)


@contextmanager
def _open_target() -> Iterator[tuple[PostgresSettings, Path]]:
    """Return the database and the folder of migrations. Raises: Unavailable with what to do."""
    settings = Settings()
    target = find_target(settings)
    dsn = target.need_postgres()
    try:
        yield PostgresSettings(dsn=SecretStr(dsn)), settings.migrations or project().migrations
    except Unavailable as exc:
        forward = "" if target.local else closed_forward(dsn, exc.__cause__)
        raise Unavailable(f"{exc}{forward}") from exc


@app.command()
def upgrade(
    before_rollout: bool = typer.Option(
        False,
        "--before-rollout",
        help="apply only what the running version can work with; run again without this option "
        "once the new version runs everywhere",
    ),
) -> None:
    """Apply the migrations that are missing."""
    with (
        spoken_errors(),
        _open_target() as (settings, migrations),
        SchemaSession(settings) as session,
    ):
        current = revisions_over(session)
        missing = schema.pending(migrations, current)
        target = schema.before_rollout(migrations, current) if before_rollout else schema.HEADS
        if missing:
            schema.upgrade_over(session, migrations, target)
        left = schema.pending(migrations, revisions_over(session))
    for name in (name for name in missing if name not in left):
        console.print(f"applied {name}", highlight=False)
    if left:
        console.print(f"migrations to run after the rollout: {', '.join(left)}", highlight=False)
    else:
        console.print("the schema is current")


@app.command()
def check() -> None:
    """Compare the database with this version, and check the ledger's rules."""
    with spoken_errors(), _open_target() as (settings, migrations):
        found = inspect(settings, migrations)
    for finding in found:
        console.print(f"{finding.fault}: {finding.sentence}", highlight=False, markup=False)
    if found:
        gravest = min(found, key=lambda finding: list(SchemaFault).index(finding.fault))
        raise typer.Exit(STATUS[gravest.fault])
    console.print("the schema is current, and every rule of the ledger holds")
