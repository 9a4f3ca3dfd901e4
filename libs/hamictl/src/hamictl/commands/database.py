"""`hamictl db`: bring the ledger's schema up to date, or say whether it is."""

from __future__ import annotations

from pathlib import Path

import typer
from hamicommon.db import schema
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from hamictl.commands.running import console, spoken_errors
from hamictl.local.layout import project
from hamictl.settings import Settings
from hamictl.target import find_target

app = typer.Typer(help="The ledger's schema.", no_args_is_help=True)


def _where() -> tuple[PostgresSettings, Path]:
    settings = Settings()
    dsn = find_target(settings).need_postgres()
    return PostgresSettings(dsn=SecretStr(dsn)), settings.migrations or project().migrations


@app.command()
def upgrade() -> None:
    """Apply every migration that is missing."""
    with spoken_errors():
        schema.upgrade(*_where())
    console.print("the schema is current")


@app.command()
def check() -> None:
    """Compare the database with the tables of this version."""
    with spoken_errors():
        schema.check(*_where())
    console.print("the schema is current")
