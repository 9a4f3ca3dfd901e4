"""Starts hami-webhook: settings from the environment, telemetry, then serve until stopped."""

from __future__ import annotations

import asyncio
import sys

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.serving import until_stopped
from hamicommon.settings import describe
from pydantic import ValidationError

from hami_webhook.bootstrap import open_app
from hami_webhook.settings import Settings


def main() -> None:
    """Console script `hami-webhook`."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # required fields come from variables
    except ValidationError as exc:
        sys.exit(f"hami-webhook: {describe(exc)}")
    telemetry.setup("hami-webhook", settings.telemetry)
    try:
        asyncio.run(_run(settings))
    except* HamiError as group:
        sys.exit(f"hami-webhook: {group.exceptions[0]}")
    finally:
        telemetry.shutdown()


async def _run(settings: Settings) -> None:
    async with open_app(settings):
        await until_stopped()


if __name__ == "__main__":
    main()
