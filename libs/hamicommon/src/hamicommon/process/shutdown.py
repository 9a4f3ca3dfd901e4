"""When a service is to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal


async def until_stopped() -> None:
    """Returns at SIGTERM or SIGINT; a second one has its usual effect."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in signals:
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)
