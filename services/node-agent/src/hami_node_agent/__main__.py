"""Starts hami-node-agent: settings from the environment, telemetry, then serve until stopped."""

from __future__ import annotations

import asyncio
import sys

from hamicommon import telemetry
from hamicommon.errors import HamiError
from hamicommon.serving import until_stopped
from hamicommon.settings import describe
from pydantic import ValidationError

from hami_node_agent.bootstrap import open_agent
from hami_node_agent.settings import Settings


def main() -> None:
    """Console script `hami-node-agent`."""
    try:
        settings = Settings()  # type: ignore[call-arg]  # required fields come from variables
    except ValidationError as exc:
        sys.exit(f"hami-node-agent: {describe(exc)}")
    telemetry.setup("hami-node-agent", settings.telemetry)
    try:
        asyncio.run(_run(settings))
    except* HamiError as group:
        sys.exit(f"hami-node-agent: {first(group)}")
    finally:
        telemetry.shutdown()


def first(group: BaseExceptionGroup[HamiError]) -> BaseException:
    """The first error in a tree of groups: task groups nest."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(settings: Settings) -> None:
    async with open_agent(settings):
        await until_stopped()


if __name__ == "__main__":
    main()
