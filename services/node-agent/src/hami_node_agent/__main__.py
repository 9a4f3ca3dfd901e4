"""Start hami-node-agent and serve until stopped; SIGHUP reloads the settings."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import Sequence

from hamicommon import telemetry
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.process.shutdown import until_stopped

from hami_node_agent.bootstrap.agent import open_agent
from hami_node_agent.config.sources import ConfiguredSettings, environment, read_configuration

logger = logging.getLogger("hami_node_agent")

# Readers of regions and of the kubelet's state compute in threads; the kubelet's calls wait as long
# for the interpreter, and Python's own 5 ms are half of what an answer may take.
SWITCH_INTERVAL_S = 0.001


def main() -> None:
    """Run `hami-node-agent`, which also accepts the flags of HAMi's device plugin."""
    arguments = sys.argv[1:]
    try:
        start = read_configuration(arguments, environment())
    except InvalidRequest as exc:
        sys.exit(f"hami-node-agent: {exc}")
    telemetry.setup("hami-node-agent", start.settings.telemetry)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    problem = ""
    try:
        asyncio.run(_run(arguments, start))
    except* HamiError as group:
        problem = str(first(group))
    finally:
        telemetry.shutdown()
    # Not above: CPython before 3.11.4 groups an exception raised in an `except*`.
    if problem:
        sys.exit(f"hami-node-agent: {problem}")


def first(group: BaseExceptionGroup[HamiError]) -> BaseException:
    """Return the first error in a tree of exception groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(arguments: Sequence[str], start: ConfiguredSettings) -> None:
    """Run an agent for the configuration; after a reload, run another one."""
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    now: ConfiguredSettings | None = start
    while now is not None:
        for note in now.notes:
            logger.warning("Found a setting that needs attention", extra={"note": note})
        async with open_agent(now.settings):
            _freeze_gc()
            now = await _wait_for_reload(arguments, hung_up)


def _freeze_gc() -> None:
    """Exempt loaded objects from garbage collection, whose scans take longer than an answer may.

    Memory that only the start used is returned.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


async def _wait_for_reload(
    arguments: Sequence[str], hung_up: asyncio.Event
) -> ConfiguredSettings | None:
    """Wait for SIGHUP and return the new configuration; None: the agent must stop.

    An invalid configuration changes nothing.
    """
    stopped = asyncio.ensure_future(until_stopped())
    try:
        while True:
            hup = asyncio.ensure_future(hung_up.wait())
            await asyncio.wait([stopped, hup], return_when=asyncio.FIRST_COMPLETED)
            hup.cancel()
            if stopped.done():
                return None
            hung_up.clear()
            try:
                found = read_configuration(arguments, environment())
            except InvalidRequest as exc:
                logger.error(
                    "Keeping the old configuration: the new one is invalid",
                    extra={"error": str(exc)},
                )
            else:
                logger.info("Reloaded the configuration")
                return found
    finally:
        stopped.cancel()


if __name__ == "__main__":
    main()
