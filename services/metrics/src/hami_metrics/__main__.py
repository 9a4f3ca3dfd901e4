"""Starts hami-metrics: settings from the environment, telemetry, then serve until stopped."""

from __future__ import annotations

import asyncio
import sys

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.serving import until_stopped
from hamicommon.settings import describe
from pydantic import ValidationError

from hami_metrics.bootstrap import open_app
from hami_metrics.settings import Settings


def main() -> None:
    """Console script `hami-metrics`."""
    try:
        settings = Settings()
    except ValidationError as exc:
        sys.exit(f"hami-metrics: {describe(exc)}")
    telemetry.setup("hami-metrics", settings.telemetry)
    try:
        asyncio.run(_run(settings))
    except* HamiError as group:
        sys.exit(f"hami-metrics: {group.exceptions[0]}")
    finally:
        telemetry.shutdown()


async def _run(settings: Settings) -> None:
    async with open_app(settings):
        await until_stopped()


if __name__ == "__main__":
    main()
