"""Start `hami-scheduler`: read the settings, set up telemetry, serve."""

from __future__ import annotations

import sys

import uvloop
from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.settings import describe, log_unknown_variables
from pydantic import ValidationError

from hami_scheduler.bootstrap.server import serve
from hami_scheduler.settings import Settings


def main() -> None:
    """Run the service until a signal stops it."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # required fields come from variables
    except ValidationError as exc:
        sys.exit(f"hami-scheduler: {describe(exc, Settings)}")
    telemetry.setup("hami-scheduler", settings.telemetry)
    log_unknown_variables(Settings, others=("HAMI_SCHEDULER_URL",))
    try:
        uvloop.run(serve(settings))
    except HamiError as exc:
        sys.exit(f"hami-scheduler: {exc}")
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
