"""Bringing a database to the newest schema, and saying whether it is there.

The history itself is in `migrations/`; it travels beside the code, not inside it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.settings import PostgresSettings


def _config(settings: PostgresSettings, migrations: Path) -> Config:
    if not (migrations / "env.py").is_file():
        raise InvalidRequest(f"{migrations}: no migrations here (env.py is missing)")
    config = Config()
    config.set_main_option("script_location", str(migrations))
    config.attributes["settings"] = settings
    return config


def upgrade(settings: PostgresSettings, migrations: Path, revision: str = "head") -> None:
    """Applies every migration up to `revision`; blocking, and not to be called on an event loop.

    Raises: InvalidRequest when there are no migrations in the folder.
    """
    command.upgrade(_config(settings, migrations), revision)


def downgrade(settings: PostgresSettings, migrations: Path, revision: str = "base") -> None:
    """Takes migrations back down to `revision`; blocking."""
    command.downgrade(_config(settings, migrations), revision)


def check(settings: PostgresSettings, migrations: Path) -> None:
    """Compares the database with the tables of this version; blocking.

    Raises: Conflict when they differ, with what differs.
    """
    try:
        command.check(_config(settings, migrations))
    except CommandError as exc:
        raise Conflict(f"the database does not match this version: {exc}") from exc
