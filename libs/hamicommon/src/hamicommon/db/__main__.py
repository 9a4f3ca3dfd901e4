"""`python -m hamicommon.db MIGRATIONS`: the migrations that go before a roll-out, for a Job.

The images of the services have no hamictl; this does `hamictl db upgrade --before-rollout`, from
HAMI_POSTGRES_DSN.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pydantic import ValidationError

from hamicommon.db import schema
from hamicommon.db.inspection import revision_of
from hamicommon.errors import HamiError
from hamicommon.settings import PostgresSettings, describe

logger = logging.getLogger("hamicommon.db")


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 1:
        logger.error("usage: python -m hamicommon.db MIGRATIONS")
        return 2
    migrations = Path(arguments[0])
    try:
        settings = PostgresSettings()  # type: ignore[call-arg]  # required fields come from variables
        target = schema.before_rollout(migrations, revision_of(settings))
        schema.upgrade(settings, migrations, target)
        left = schema.pending(migrations, revision_of(settings))
    except ValidationError as exc:
        logger.error("%s", describe(exc, PostgresSettings))
        return 1
    except HamiError as exc:
        logger.error("%s", exc)
        return 1
    logger.info("the schema is ready; after the roll-out: %s", ", ".join(left) or "nothing")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    sys.exit(main(sys.argv[1:]))
