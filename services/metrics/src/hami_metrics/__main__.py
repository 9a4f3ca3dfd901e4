"""Start hami-metrics with settings from the environment, and serve until stopped."""

from __future__ import annotations

import sys

from hamicommon import telemetry
from hamicommon.process.http_server import run
from hamicommon.settings import describe, log_unknown_variables
from pydantic import ValidationError

from hami_metrics.bootstrap import open_app
from hami_metrics.settings import Settings


def main() -> None:
    """Run `hami-metrics`."""
    try:
        settings = Settings()
    except ValidationError as exc:
        sys.exit(f"hami-metrics: {describe(exc, Settings)}")
    telemetry.setup("hami-metrics", settings.telemetry)
    log_unknown_variables(Settings, others=("HAMI_METRICS_URL",))
    try:
        run("hami-metrics", open_app(settings))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
